"""Build what train.py needs from its flags: process group, loaders, model, losses, optimizer and state."""

import contextlib
import logging
import os
from collections import Counter
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.optim import Optimizer

import models
from data.dataset import EvalSet, SegmentationDataset, TrainSet, identity_collate
from data.layout import Split
from data.loader import Loader
from data.sampler import EvalBatches, TrainSampler
from distributed.group import Group
from distributed.precision import DTYPES, LossScaler
from distributed.process_group import process_group
from distributed.rank_checks import digest
from flags import Config
from flags.loss_weights import loss_weights, own_losses, read_class_weights
from flags.shared import LaunchFlags
from inference.windows import Windows
from losses.class_weights import balanced_weights
from losses.criterion import Criterion
from losses.own import count_losses
from losses.upsampling import find_points
from models import pretrained
from models.captured import capture_network
from models.compiled import compile_blocks, find_problem
from models.layers.norm import synchronize_batch_norm
from models.lorm import find_foreground
from models.memory import choose_blocks, gpu_memory
from models.pretrained import StartWeights
from support.errors import UserError
from support.labels import MAPS
from support.log import log
from support.user_code import is_own_network
from training.average import WeightAverage
from training.checkpoint_content import Checkpoint
from training.data import (
    computed_maps,
    count_labels,
    find_masks,
    find_training_files,
    get_transform,
    make_loader,
    reading_options,
)
from training.optimizers import make_optimizer, parameter_groups
from training.schedule import Schedule
from training.state import TrainState

UNKNOWN_SIZE = (0, 0)  # of an image


def join_group(cfg: LaunchFlags) -> contextlib.AbstractContextManager[Group]:
    """Return a context manager that joins the process group that the flags ask for, if any, and yields the Group."""
    return process_group(**cfg.group_options)


def set_deterministic(deterministic: bool) -> None:
    """Turn torch's deterministic algorithms on or off. If on, an operation without one raises RuntimeError."""
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it starts
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.deterministic = deterministic
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # filling is slow


def get_loader(cfg: Config, split: str, group: Group, files: Split | None = None) -> Loader:
    """Return a DataLoader over this process's share of the training or validation split. Collective.

    split: "train" or "val". files: the split's files; None: find them. Raises UserError if files are missing, if
    --long_side or --window is too large for images, if a validation mask has another size than its image, if an epoch
    is smaller than a global batch, or if --transform cannot be used.
    """
    if split == "train":
        return get_train_loader(cfg, group, files or find_training_files(cfg))
    loader = get_eval_loader(cfg, cfg.val_split, group, files)
    for size in {*loader.batch_sampler.sizes} - {UNKNOWN_SIZE}:
        Windows(size, 1.0, **cfg.window_options)  # raises now what the first validation would raise
    return loader


def get_train_loader(cfg: Config, group: Group, files: Split) -> Loader:
    # The loader's workers compute what depends on labels only: in a step, the CPU would have to wait for the GPU.
    derive: dict[str, tuple[str, Callable]] = {}
    if MAPS[cfg.dataset] == ("label",):  # other maps need a pass over all pixels anyway
        derive["points"] = "label", find_points
    weights = loss_weights(cfg)
    if sources := {name: source for name, source in own_losses(cfg.loss).items() if name in weights}:
        derive["own_counts"] = "label", partial(count_losses, sources=sources)
    if "lorm" in weights:
        with torch.device("meta"):  # only the size of the features is needed, so no weights are allocated
            backbone = models.build(cfg.model_type, **cfg.architecture).backbone
        size = backbone.feature_size(cfg.crop_size, cfg.crop_size)
        derive["foreground"] = "pseudo", partial(find_foreground, size=size, background=cfg.background_class)
    options: dict = {"computed_maps": computed_maps(cfg), "derived_fields": derive, **reading_options(cfg)}
    dataset = TrainSet(files, cfg.numclasses, transform=get_transform(cfg), seed=cfg.seed, **options)
    sampler = TrainSampler(
        len(dataset),
        batch_size=cfg.batchsize,
        accum_steps=cfg.accum_steps,
        seed=cfg.seed,
        rank=group.rank,
        world_size=group.world_size,
        repeat=cfg.repeat,
    )
    return make_loader(dataset, cfg, group, sampler=sampler, batch_size=cfg.batchsize, collate_fn=identity_collate)


def get_eval_loader(cfg: Config, split: str, group: Group, files: Split | None = None) -> Loader:
    """Return a DataLoader over this process's share of the images and dense masks of a split. Collective.

    split: name of the list or subfolder. files: see get_loader(). Raises UserError if files are missing, if a mask has
    another size than its image, or if a list other than the training list has a name twice.
    """
    files = files or find_masks(cfg, split)
    dataset = EvalSet(files, cfg.numclasses, **reading_options(cfg))
    name, number = Counter(dataset.names).most_common(1)[0]
    if number > 1 and split != cfg.train_split:
        raise UserError(f"{files.list_file}: lists {name} {number} times, and each would count: keep one of them")
    # Each rank reads a share of the sizes. A size is None if ranks list different files, which check_setup() refuses:
    # in train.py before this call, in evaluate.py after it.
    sizes = [size or UNKNOWN_SIZE for size in group.share_work(dataset.checked_size, range(len(dataset)))]
    batch_size = 1 if cfg.window else cfg.val_batchsize  # the windows of one image fill a forward pass
    batches = EvalBatches(sizes, batch_size=batch_size, rank=group.rank, world_size=group.world_size)
    return make_loader(dataset, cfg, group, workers=cfg.val_workers, batch_sampler=batches, collate_fn=identity_collate)


def get_model(
    cfg: Config, group: Group, start_weights: StartWeights | None = None
) -> tuple[models.Segmenter, nn.Module]:
    """Return (model on this process's device, module to train: the model's DDP wrapper, or the model without a group).

    Collective. start_weights: given on rank 0 only; the wrapper broadcasts them. Raises UserError if none of them fits
    the backbone.
    """
    torch.manual_seed(cfg.seed)
    raw_model = build_model(cfg)
    if start_weights is not None:
        network = "your network" if cfg.network == "own" else cfg.network
        line = pretrained.load_start_weights(raw_model, start_weights, network)
        usual = cfg.pretrained in ("none", "imagenet", "imagenet_v1")
        log.log(logging.DEBUG if usual else logging.INFO, line)
    size = cfg.batchsize, cfg.crop_size
    # Losses by region, and losses of one's own, keep about four float32 maps of all classes at full size.
    loss_bytes = 16 * cfg.numclasses * cfg.batchsize * cfg.crop_size**2 if cfg.loss != "ce" else 0
    # All ranks must choose alike: DDP gets the gradients of fused blocks in another order.
    memory = min(group.gather(gpu_memory(group.device)[0]))
    choose_blocks(raw_model, cfg.fused_blocks, size, DTYPES[cfg.amp], memory, loss_bytes)
    if group.world_size > 1 and not cfg.freeze_bn:  # after choose_blocks(): the meta device has no collectives
        synchronize_batch_norm(raw_model, cfg.sync_bn, group.device)
    # Images arrive as (B, H, W, 3), which is channels-last order; convolutions are faster in it too.
    raw_model = raw_model.to(group.device).to(memory_format=torch.channels_last)
    if not raw_model.backbone.blocks():
        network = cfg.model_type if is_own_network(cfg.model_type) else cfg.backbone
        if cfg.grad_checkpointing:
            log.warning(f"--grad_checkpointing saves no memory: {network} has no sequence of blocks to recompute")
        if cfg.compile:
            log.warning(f"--compile does not compile {network}: it has no sequence of blocks")
    if cfg.compile and compiles_everywhere(group):
        compile_blocks(raw_model)
    if cfg.cuda_graph:
        shape = (cfg.batchsize, cfg.crop_size, cfg.crop_size, 3)
        capture_network(raw_model, torch.zeros(shape, dtype=torch.uint8, device=group.device), DTYPES[cfg.amp])
    return raw_model, group.wrap(raw_model)


def compiles_everywhere(group: Group) -> bool:
    """Return whether torch.compile works on all ranks, and log a warning if it does not. Collective.

    Without it on one rank, no rank compiles: DDP would get the gradients of that rank in another order.
    """
    problems = [problem for problem in group.gather(find_problem(group.device)) if problem]
    if problems:
        remedy = "it needs g++ and, for CUDA, Triton"
        log.warning(
            f"--compile: torch.compile does not work here ({problems[0]}): the run goes on without it, slower; {remedy}"
        )
    return not problems


def build_model(cfg: Config) -> models.Segmenter:
    model = models.build(
        cfg.model_type,
        **cfg.architecture,
        head_init=cfg.head_init,
        freeze_bn=cfg.freeze_bn,
        freeze_backbone=cfg.freeze_backbone,
        grad_checkpointing=cfg.grad_checkpointing,
        lorm_scope=cfg.lorm_scope,
    )
    model.backbone.freeze_unused(model.head)
    if model.lorm is not None and "lorm" not in loss_weights(cfg):
        model.lorm.requires_grad_(False)  # DDP waits for a gradient of every parameter that requires one
    return model


def get_class_weights(cfg: Config, group: Group, train_set: SegmentationDataset) -> list[float] | None:
    """Return the class weights of --class_weights, equal on all ranks; None without any, or if no loss uses them.

    Collective. For --class_weights balanced, each rank counts a share of the labels.
    """
    if cfg.class_weights == "none" or "seg" not in loss_weights(cfg):
        return None
    weights = read_class_weights(cfg.class_weights, cfg.numclasses)
    if weights is None:  # "balanced"
        paths = [files["label"] for files in train_set.files]
        rows = count_labels(paths, group, train_set.label_map, cfg.numclasses)
        pixels = [sum(row.get(number, 0) for row in rows) for number in range(cfg.numclasses)]
        weights = balanced_weights(pixels).tolist()
    return group.broadcast(weights)  # logarithms may round differently on other machines


def get_criterion(cfg: Config, raw_model: models.Segmenter, class_weights: list[float] | None = None) -> Criterion:
    """Return the Criterion with the run's losses.

    raw_model: tells how many channels LoRM compares. Raises UserError if a loss of the user's own cannot be made, or if
    LoRM and the CRF are the only losses: neither says which class a pixel has.
    """
    weights = loss_weights(cfg)
    if not set(weights) - {"lorm", "crf"}:
        raise UserError(
            f"--dataset {cfg.dataset} with these --l_* weights leaves no loss to train the head on: raise --l_seg or "
            "--l_pseudo"
        )
    return Criterion(
        weights,
        own_losses(cfg.loss),
        label_smooth=cfg.label_smooth,
        class_weights=class_weights,
        lorm_terms=0 if cfg.lorm_scope == "all" else raw_model.backbone.channels[-1],
    )


def get_optimizer(cfg: Config, group: Group, raw_model: models.Segmenter, lr: float) -> Optimizer:
    """Return the optimizer of --optimizer for the trained parameters. lr: at first; the schedule sets each step's."""
    groups = parameter_groups(
        raw_model, weight_decay=cfg.wdecay, decay_norm_bias=cfg.decay_norm_bias, head_lr_factor=cfg.head_lr_factor
    )
    options = {"momentum": cfg.momentum} if cfg.optimizer == "sgd" else {"betas": cfg.betas}
    return make_optimizer(cfg.optimizer, groups, fused=group.device.type == "cuda", lr=lr, **options)


def get_state(
    cfg: Config,
    group: Group,
    raw_model: models.Segmenter,
    model: nn.Module,
    optimizer: Optimizer,
    schedule: Schedule,
    train_set: SegmentationDataset,
    resumed: Checkpoint | None = None,
) -> TrainState:
    """Return the TrainState of a new run, or with the content of the Checkpoint `resumed`.

    --reset_optimizer leaves the optimizer new, and --reset_data_offset the position in the run. Raises UserError if the
    checkpoint does not fit the model or the optimizer, or if --seed, --repeat or the training list has changed in
    mid-epoch.
    """
    scaler = LossScaler(group.device, enabled=cfg.amp == "fp16")
    ema = WeightAverage(raw_model, cfg.ema) if cfg.ema else None
    state = TrainState(raw_model, model, optimizer, scaler, ema, origin=schedule.origin)
    state.listing, state.clip_grad = digest(train_set.listing), cfg.clip_grad
    state.keeps_gradients = raw_model.captured is not None
    if resumed is None:
        return state
    # If lists are equal, a position beyond the end means a damaged checkpoint.
    is_beyond_end = resumed.samples > len(train_set) * resumed.config["repeat"]
    changed = ["training list"] if resumed.listing != state.listing or is_beyond_end else []
    changed += [f"--{name}" for name in ("seed", "repeat") if resumed.config[name] != getattr(cfg, name)]
    if resumed.samples and changed and not cfg.reset_data_offset:
        raise UserError(
            f"--resume {cfg.resume}: the {changed[0]} has changed in the middle of an epoch: restore it, resume a "
            "checkpoint from between two epochs, or start a new run from these weights with --reset_data_offset"
        )
    state.restore(resumed, group, optimizer=not cfg.reset_optimizer, position=not cfg.reset_data_offset)
    return state

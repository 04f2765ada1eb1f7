"""Build the objects of a run from its flags: get_loader, get_model, get_criterion, get_optimizer, get_state."""

import contextlib
import dataclasses
import logging
import os
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar, overload

import torch
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset

import config
import models
from config import Config
from config.losses import parse_loss, read_class_weights
from config.shared import LaunchFlags
from data import demo, histogram
from data.dataset import SegmentationDataset
from data.distance import pseudo_distance, scribble_distance
from data.images import image_size
from data.layout import Split, find_split
from data.loader import EvalLoader, TrainLoader, loader_options
from data.sampler import EvalBatches, TrainSampler
from data.transforms import CentreCrop, TrainTransform
from distributed.checks import digest
from distributed.group import Group
from distributed.join import process_group
from distributed.signals import ignore_signals
from errors import UserError
from labels import MAPS
from losses.criterion import NEEDS, TERMS, Criterion
from losses.label_losses import PIXEL_LOSSES
from models import pretrained
from models.amp import LossScaler
from models.pretrained import StartWeights
from runs import checkpoint
from runs.log import progress_bar
from runs.state import TrainState
from runs.summary import Summary, summarize

DEMO_ROOT = Path("dataset/demo")

# {distance map: (the map to compute it from, the function)}, used if no folder has the distance map.
COMPUTE = {"distance_s": ("label", scribble_distance), "distance_c": ("pseudo", pseudo_distance)}

log = logging.getLogger("segtrain")
Loader = TypeVar("Loader", bound=DataLoader)


def set_deterministic(deterministic: bool) -> None:
    """Turn deterministic algorithms on or off. If on, an operation without one raises RuntimeError."""
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it starts
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.deterministic = deterministic


def prepare_demo_data(cfg: Config, group: Group) -> None:
    """Draw the demo data set if --dataset_path names it: one process per machine draws, the others wait."""
    if Path(cfg.dataset_path) == DEMO_ROOT:
        if group.local_rank == 0:
            demo.draw_dataset(DEMO_ROOT)
        group.barrier()


def join_group(cfg: LaunchFlags) -> contextlib.AbstractContextManager[Group]:
    """Join the process group that the flags ask for, or none: see distributed.join.process_group."""
    return process_group(
        distributed=cfg.distributed,
        device=cfg.device,
        backend=cfg.backend,
        dist_url=cfg.dist_url,
        world_size=cfg.world_size,
        rank=cfg.rank,
        local_rank=cfg.local_rank,
        timeout=cfg.dist_timeout,
        debug=cfg.log_level == "DEBUG",
    )


def share_batch(cfg: Config, group: Group) -> Config:
    """Return the flags with --batchsize set to each process's share of --total_batchsize, if that is set."""
    if not cfg.total_batchsize:
        return cfg
    parts = cfg.accum_steps * group.world_size
    if cfg.total_batchsize % parts:
        multiple = max(1, cfg.total_batchsize // parts) * parts
        raise UserError(
            f"--total_batchsize {cfg.total_batchsize} is not divisible by {group.world_size} process(es) x "
            f"--accum_steps {cfg.accum_steps}: use {multiple} or another multiple of {parts}"
        )
    return dataclasses.replace(cfg, batchsize=cfg.total_batchsize // parts)


@overload
def get_loader(cfg: Config, split: Literal["train"], group: Group) -> TrainLoader: ...
@overload
def get_loader(cfg: Config, split: Literal["val"], group: Group) -> EvalLoader: ...
def get_loader(cfg: Config, split: str, group: Group) -> TrainLoader | EvalLoader:
    """Return a DataLoader over this process's share of the training or validation list.

    Raises UserError if folders, lists or files are missing.
    """
    return get_train_loader(cfg, group) if split == "train" else get_eval_loader(cfg, split, group)


def get_train_loader(cfg: Config, group: Group) -> TrainLoader:
    # The folder of each map; a distance map without a folder is computed.
    folders = {
        "label": cfg.train_path,
        "pseudo": cfg.pseudo_path,
        "distance_s": cfg.distancemap_s,
        "distance_c": cfg.distancemap_c,
    }
    compute = {
        name: (COMPUTE[name][0], partial(COMPUTE[name][1], background=cfg.background_class))
        for name in MAPS[cfg.dataset]
        if name in COMPUTE and not folders[name]
    }
    stored = {name: folders[name] for name in MAPS[cfg.dataset] if name not in compute}
    files = find_split(
        Path(cfg.dataset_path), cfg.dataset, "train", stored, list_path=cfg.list_path, image_path=cfg.image_path
    )
    transform = TrainTransform(cfg.crop_size) if cfg.augment else CentreCrop(cfg.crop_size)
    dataset = SegmentationDataset(files, cfg.numclasses, transform=transform, compute=compute, seed=cfg.seed)
    sampler = TrainSampler(
        len(dataset),
        batch_size=cfg.batchsize,
        accum_steps=cfg.accum_steps,
        seed=cfg.seed,
        rank=group.rank,
        world_size=group.world_size,
    )
    options: dict = {"pin_memory": cfg.pin_memory, "prefetch_factor": cfg.prefetch_factor}
    return make_loader(TrainLoader, dataset, cfg.workers, group, sampler=sampler, batch_size=cfg.batchsize, **options)


def get_eval_loader(cfg: Config, split: str, group: Group) -> EvalLoader:
    """Return an evaluation DataLoader over this process's share of a split."""
    dataset = SegmentationDataset(find_masks(cfg, split), cfg.numclasses)
    # Ranks that list different files are found later, by distributed.checks.check_setup.
    sizes = [size or (0, 0) for size in group.map(image_size, [files["image"] for files in dataset.files])]
    batches = EvalBatches(sizes, batch_size=cfg.val_batchsize, rank=group.rank, world_size=group.world_size)
    workers = cfg.workers if cfg.val_workers < 0 else cfg.val_workers
    options: dict = {"pin_memory": cfg.pin_memory, "prefetch_factor": cfg.prefetch_factor}
    return make_loader(EvalLoader, dataset, workers, group, batch_sampler=batches, **options)


def find_masks(cfg: Config, split: str) -> Split:
    """Return where the images of a split and their dense masks are."""
    layout = "Folder" if cfg.dataset == "Folder" else "Dense"
    return find_split(
        Path(cfg.dataset_path),
        layout,
        split,
        {"label": cfg.val_path},
        list_path=cfg.list_path,
        image_path=cfg.image_path,
    )


def make_loader(
    kind: type[Loader],
    dataset: Dataset,
    workers: int,
    group: Group,
    *,
    pin_memory: bool | None = None,
    prefetch_factor: int = 2,
    **batches,
) -> Loader:
    """Return a loader of this kind. batches: sampler and batch_size, or batch_sampler, and the like."""
    options = loader_options(
        workers,
        group.device,
        processes_here=group.local_world_size,
        worker_init=ignore_signals,
        pin_memory=pin_memory,
        prefetch_factor=prefetch_factor,
    )
    return kind(dataset, **batches, **options)


def get_start(cfg: Config, group: Group, saved: dict | None) -> tuple[Config, StartWeights | None]:
    """Return the flags, with stride_in_1x1 set as the weights need it, and on rank 0 the start weights.

    A run that resumes the checkpoint with content `saved` has no start weights. Raises UserError if the start weights
    cannot be read or downloaded.
    """
    if saved is not None:
        stride_in_1x1 = saved["config"].get("stride_in_1x1", False)
        if stride_in_1x1 != cfg.stride_in_1x1:
            log.info(f"--stride_in_1x1 is {'on' if stride_in_1x1 else 'off'}, as in the checkpoint")
        return dataclasses.replace(cfg, stride_in_1x1=stride_in_1x1), None
    read = partial(pretrained.read_start_weights, cfg.pretrained, cfg.layers, checkpoint.read)
    start, needed = group.on_main(read, f"loading --pretrained {cfg.pretrained}"), False
    if start is not None:
        needed = pretrained.needs_stride_in_1x1(start.state_dict, f"--pretrained {start.source}") and cfg.layers >= 50
    # Only rank 0 reads the file, but every rank builds the model.
    if group.broadcast(needed) and not cfg.stride_in_1x1:
        log.info(pretrained.STRIDE_IS_SET.format(path=f"--pretrained {cfg.pretrained}"))
        cfg = dataclasses.replace(cfg, stride_in_1x1=True)
    return cfg, start


def get_model(cfg: Config, group: Group, start: StartWeights | None = None) -> tuple[models.Segmenter, nn.Module]:
    """Return the model on this process's device, and the module to train: its DDP wrapper, or the model itself.

    start: start weights, on rank 0 only; the wrapper broadcasts them.
    """
    torch.manual_seed(cfg.seed)
    raw_model = _build(cfg)
    if start is not None:
        line = pretrained.load_start_weights(raw_model, start, cfg.layers)
        is_file = cfg.pretrained not in ("none", *pretrained.IMAGENET_VERSIONS)
        log.log(logging.INFO if is_file else logging.DEBUG, line)
    if cfg.sync_bn == "on" and group.device.type != "cuda":
        raise UserError(
            f"--sync_bn on with device {group.device}: torch's SyncBatchNorm needs CUDA: use --sync_bn auto"
        )
    if cfg.sync_bn != "off" and group.device.type == "cuda" and group.world_size > 1 and not cfg.freeze_bn:
        raw_model = nn.SyncBatchNorm.convert_sync_batchnorm(raw_model)
    # Images arrive as (B, H, W, 3), which is channels-last order; convolutions are faster in it too.
    raw_model = raw_model.to(group.device).to(memory_format=torch.channels_last)
    return raw_model, group.wrap(raw_model, static_graph=cfg.static_graph, find_unused=cfg.find_unused_parameters)


def _build(cfg: Config) -> models.Segmenter:
    model = models.build(
        cfg.model_type,
        layers=cfg.layers,
        num_classes=cfg.numclasses,
        stride_in_1x1=cfg.stride_in_1x1,
        head_init=cfg.head_init,
        freeze_bn=cfg.freeze_bn,
        grad_checkpointing=cfg.grad_checkpointing,
        lorm_scope=cfg.lorm_scope,
        background=cfg.background_class,
    )
    if model.lorm is not None and "lorm" not in active_terms(cfg):
        model.lorm.requires_grad_(False)  # DDP waits for the gradient of every parameter that requires one
    return model


def active_terms(cfg: Config) -> dict[str, float]:
    """Return {term: weight} of the losses with a weight above 0 for which --dataset has label maps."""
    has_lorm = models.MODELS[cfg.model_type].has_lorm
    return {
        term: weight
        for term in TERMS
        if (weight := getattr(cfg, f"l_{term}")) > 0
        and NEEDS[term] in MAPS[cfg.dataset]
        and (term != "lorm" or has_lorm)
    }


def get_criterion(
    cfg: Config, group: Group, raw_model: models.Segmenter, class_weights: list[float] | None = None
) -> Criterion:
    """Return the losses of the run. Raises UserError if there is none."""
    weights = active_terms(cfg)
    off = [term for term in TERMS if term not in weights]
    if not set(weights) - {"lorm"}:  # with LoRM alone the head would have no gradient
        raise UserError(
            f"--dataset {cfg.dataset} with these --l_* weights leaves no loss to train on: raise one of its weights"
        )
    if "seg" in weights:
        l_seg = weights.pop("seg")
        weights = {name: l_seg * factor for name, factor in parse_loss(cfg.loss).items()} | weights
    log.info(f"losses: {' + '.join(f'{weight:g} {term}' for term, weight in weights.items())}")
    if off:
        log.debug(f"losses that --dataset {cfg.dataset}, the model or a weight of 0 turns off: {', '.join(off)}")
    return Criterion(
        weights,
        cfg.label_smooth,
        lorm_terms=raw_model.lorm_terms,
        sum_lorm_terms=lambda count: group.sum(count) * cfg.accum_steps,
        accuracy=cfg.report_training_batch_acc,
        class_weights=class_weights,
        focal_gamma=cfg.focal_gamma,
        ohem_fraction=cfg.ohem_fraction,
    )


def get_class_weights(
    cfg: Config, group: Group, train_set: SegmentationDataset, saved: dict | None = None
) -> list[float] | None:
    """Return --class_weights as numbers, the same on all ranks, or None for equal weights. Collective.

    For --class_weights balanced, each rank counts a share of the labels. saved: content of the resumed checkpoint,
    whose weights are used again if list, label folder and classes are the same.
    """
    if cfg.class_weights == "none":
        return None
    if "seg" not in active_terms(cfg) or not set(parse_loss(cfg.loss)) & set(PIXEL_LOSSES):
        log.warning(f"--class_weights {cfg.class_weights} is not used: no loss is ce, focal or ohem")
        return None
    counted = _saved_class_weights(cfg, train_set, saved) if cfg.class_weights == "balanced" else None
    weights = counted or read_class_weights(cfg.class_weights, cfg.numclasses)
    if weights is None:
        own = [files["label"] for files in train_set.files[group.rank :: group.world_size]]
        bar = partial(progress_bar, total=len(own), title="counting labels", enabled=group.is_main)
        counts = torch.from_numpy(histogram.count_labels(own, cfg.numclasses, bar))
        weights = histogram.class_weights(group.sum(counts).numpy()).tolist()
    weights = group.broadcast(weights)  # a file may differ between machines
    values = ", ".join(f"{number}: {weight:.4g}" for number, weight in enumerate(weights))
    source = ", from the checkpoint" if counted else ""
    log.info(f"class weights (--class_weights {cfg.class_weights}{source}): {values}")
    return weights


def _saved_class_weights(cfg: Config, train_set: SegmentationDataset, saved: dict | None) -> list[float] | None:
    """The checkpoint's class weights if its training list, labels and classes are the same, else None."""
    flags = ("class_weights", "numclasses", "dataset", "train_path")
    if saved is None or any(saved["config"].get(name) != getattr(cfg, name) for name in flags):
        return None
    return saved.get("class_weights") if saved["listing"] == digest(train_set.listing) else None


def get_optimizer(cfg: Config, raw_model: nn.Module, group: Group, lr: float) -> Optimizer:
    """Return SGD; with --zero1 its state is sharded over the processes."""
    parameters = [parameter for parameter in raw_model.parameters() if parameter.requires_grad]
    options: dict = {"lr": lr, "momentum": cfg.momentum, "weight_decay": cfg.wdecay}
    if not (cfg.zero1 and group.backend):
        return SGD(parameters, **options)
    from torch.distributed.optim import ZeroRedundancyOptimizer  # imported here because it takes a second

    return ZeroRedundancyOptimizer(parameters, optimizer_class=SGD, **options)


def get_state(
    cfg: Config, group: Group, raw_model: nn.Module, model: nn.Module, optimizer: Optimizer, saved: dict | None, **facts
) -> TrainState:
    """Return the state of a new run, or of the checkpoint with content `saved`. facts: other fields of TrainState."""
    scaler = LossScaler(group.device, enabled=cfg.amp == "fp16")
    ema = AveragedModel(raw_model, multi_avg_fn=get_ema_multi_avg_fn(cfg.ema)) if cfg.ema else None
    state = TrainState(raw_model, model, optimizer, scaler, ema, **facts)
    torch.manual_seed(cfg.seed + group.rank)
    if saved is None:
        return state
    changed = "training list" if saved["listing"] != state.listing else "--seed"
    same_order = (saved["listing"], saved["config"]["seed"]) == (state.listing, cfg.seed)
    if saved["samples"] and not same_order and not cfg.reset_data_offset:
        raise UserError(
            f"--resume {cfg.resume}: the {changed} has changed in the middle of an epoch: restore it, resume a "
            "checkpoint from between two epochs, or start a new run from these weights with --reset_data_offset"
        )
    log.info(f"flags changed since the checkpoint: {config.changes(saved['config'], cfg) or 'none'}")
    state.restore(saved, group, optimizer=not cfg.reset_optimizer, position=not cfg.reset_data_offset)
    return state


def get_summary(cfg: Config, group: Group, criterion: Criterion) -> Summary:
    """Return the sizes of the model and of a process that trains it with these losses."""
    with torch.device("meta"):
        model = _build(cfg)
    return summarize(
        model,
        criterion,
        batchsize=cfg.batchsize,
        crop_size=cfg.crop_size,
        amp=cfg.amp,
        ema=cfg.ema > 0,
        momentum=cfg.momentum > 0,
        momentum_shards=group.world_size if cfg.zero1 else 1,
    )

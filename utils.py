"""Where flags become objects: get_loader, get_model, get_optimizer, get_state; criterion.py has the losses."""

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

import config
import models
from common_flags import LaunchFlags
from config import Config
from criterion import MAPS, active_terms
from data import demo
from data.dataset import SegmentationDataset, image_size
from data.distance import pseudo_distance, scribble_distance
from data.layout import find_files
from data.sampler import EvalBatches, TrainSampler
from data.transforms import CentreCrop, TrainTransform
from engine import checkpoint
from engine.distributed import Group, process_group
from engine.doctor import digest
from engine.schedule import lr_factor
from engine.state import TrainState
from errors import UserError
from loaders import make_loader, share_out
from models.pretrained import load_start_weights

DEMO_ROOT = Path("dataset/demo")

# How a distance map is made where no folder has it: from which map, and by what.
COMPUTE = {"distance_s": ("label", scribble_distance), "distance_c": ("pseudo", pseudo_distance)}


def set_deterministic(deterministic: bool) -> None:
    """Make every later operation give the same bits each time, or fail where CUDA cannot; or undo that."""
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.deterministic = deterministic


def prepare_demo_data(cfg: Config, group: Group) -> None:
    """Draw the demo data set where --dataset_path names it: one process a machine draws, the others wait."""
    if Path(cfg.dataset_path) == DEMO_ROOT:
        if group.local_rank == 0:
            demo.draw_dataset(DEMO_ROOT)
        group.barrier()


def join_group(cfg: LaunchFlags) -> contextlib.AbstractContextManager[Group]:
    """The process group that the flags ask for, or this one process; engine.distributed.process_group."""
    return process_group(
        distributed=cfg.distributed, device=cfg.device, backend=cfg.backend, dist_url=cfg.dist_url,
        world_size=cfg.world_size, rank=cfg.rank, local_rank=cfg.local_rank, timeout=cfg.dist_timeout,
    )  # fmt: skip


def share_batch(cfg: Config, group: Group) -> Config:
    """The flags with the --batchsize that --total_batchsize, where it is set, leaves to each process."""
    if not cfg.total_batchsize:
        return cfg
    parts = cfg.accum_steps * group.world_size
    if cfg.total_batchsize % parts:
        whole = max(1, cfg.total_batchsize // parts) * parts
        raise UserError(
            f"--total_batchsize {cfg.total_batchsize} cannot be divided by {group.world_size} process(es) x --accum_steps "
            f"{cfg.accum_steps}: use {whole} or another multiple of {parts}"
        )
    return dataclasses.replace(cfg, batchsize=cfg.total_batchsize // parts)


def find_masks(cfg: Config, split: str) -> tuple[list[str], dict[str, Path]]:
    """The names of a split, and the folders of its images and dense masks; data.layout.find_files."""
    return find_files(
        Path(cfg.dataset_path), "Folder" if cfg.dataset == "Folder" else "Dense", split, {"label": cfg.val_path},
        list_path=cfg.list_path, image_path=cfg.image_path,
    )  # fmt: skip


def get_loader(cfg: Config, split: str, group: Group, *, training: bool | None = None) -> DataLoader:
    """The loader of this process's share of a split: "train", "val", or another list's name.

    training: random order and augmentation [where the split is "train"]. Then batches of uint8 maps
    {"image": (B, H, W, 3), and those of MAPS: (B, H, W)}, H = W = crop_size; sampler.set_position(epoch, samples)
    chooses the order and where to begin. Otherwise batches of images of one size, which do not depend on the number of
    processes, with "label", the dense mask, and "index" (B,), the place in the list.
    Raises UserError on folders, lists or files that are not there.
    """
    load = partial(make_loader, group=group, pin_memory=cfg.pin_memory, prefetch_factor=cfg.prefetch_factor)
    training = split == "train" if training is None else training
    if not training:
        val_set = SegmentationDataset(*find_masks(cfg, split), cfg.numclasses)
        batches = EvalBatches(
            _image_sizes(val_set, group), batch_size=cfg.val_batchsize, rank=group.rank, world_size=group.world_size
        )
        workers = cfg.workers if cfg.val_workers < 0 else cfg.val_workers
        return load(val_set, workers, batch_sampler=batches)

    # Where each map lies; what no folder has is computed.
    paths = {
        "label": cfg.train_path, "pseudo": cfg.pseudo_path, "distance_s": cfg.distancemap_s, "distance_c": cfg.distancemap_c,
    }  # fmt: skip
    compute = {name: COMPUTE[name] for name in MAPS[cfg.dataset] if name in COMPUTE and not paths[name]}
    maps = {name: paths[name] for name in MAPS[cfg.dataset] if name not in compute}
    names, folders = find_files(
        Path(cfg.dataset_path), cfg.dataset, split, maps, list_path=cfg.list_path, image_path=cfg.image_path
    )
    transform = TrainTransform(cfg.crop_size) if cfg.augment else CentreCrop(cfg.crop_size)
    train_set = SegmentationDataset(names, folders, cfg.numclasses, transform=transform, compute=compute, seed=cfg.seed)
    sampler = TrainSampler(
        len(train_set), batch_size=cfg.batchsize, accum_steps=cfg.accum_steps, seed=cfg.seed,
        rank=group.rank, world_size=group.world_size,
    )  # fmt: skip
    return load(train_set, cfg.workers, sampler=sampler, batch_size=cfg.batchsize)


def _image_sizes(dataset: SegmentationDataset, group: Group) -> list[tuple[int, int]]:
    """(height, width) of every image; each process reads the headers of its share."""
    sizes = share_out(image_size, [files["image"] for files in dataset.files], group)
    # Ranks may list other files, which engine.doctor.check_setup finds after this.
    return [sizes.get(index, (0, 0)) for index in range(len(dataset))]


def get_model(
    cfg: Config, group: Group, say: Callable[[str], None] = print, *, pretrained: bool = True
) -> tuple[models.Segmenter, nn.Module]:
    """The model on this process's device, and what to call in training: its DDP wrapper, or the model itself.

    pretrained: whether to load start weights, which a resumed run does not need. Only rank 0 reads or
    downloads them; the wrapper sends them to the other ranks, which wait for it.
    """
    torch.manual_seed(cfg.seed)
    raw_model = models.build(
        cfg.model_type, layers=cfg.layers, num_classes=cfg.numclasses,
        stride_in_1x1=cfg.stride_in_1x1, freeze_bn=cfg.freeze_bn,
    )  # fmt: skip
    if pretrained and group.is_main:
        say(load_start_weights(raw_model, cfg.pretrained, cfg.layers, checkpoint.read))
    if raw_model.lorm is not None and "lorm" not in active_terms(cfg):
        raw_model.lorm.requires_grad_(False)  # DDP waits for a gradient of whatever wants one
    if cfg.sync_bn == "on" and group.device.type != "cuda":
        raise UserError(
            f"--sync_bn on with device {group.device}: torch's SyncBatchNorm needs CUDA; use --sync_bn auto"
        )
    if cfg.sync_bn != "off" and group.device.type == "cuda" and group.world_size > 1 and not cfg.freeze_bn:
        raw_model = nn.SyncBatchNorm.convert_sync_batchnorm(raw_model)
    # Images arrive as (B, H, W, 3): channels last is their own order, and the faster one for convolutions.
    raw_model = raw_model.to(group.device).to(memory_format=torch.channels_last)
    return raw_model, group.wrap(raw_model, static_graph=cfg.static_graph, find_unused=cfg.find_unused_parameters)


def get_optimizer(
    cfg: Config, raw_model: nn.Module, group: Group, steps_per_epoch: int, origin: dict[str, int],
    say: Callable[[str], None] = print,
) -> tuple[torch.optim.Optimizer, Callable[[float], float]]:  # fmt: skip
    """SGD, and its lr as a function of the step, from 0: linear warm-up, then cosine to 0.

    origin: {"world_size": processes that the run began with, "global_batch": its global batch then}. The lr is
    scaled by the world size; in a run that goes on with another global batch, as that batch is. With --total_batchsize
    it is not scaled.
    """
    lr = scaled_lr(cfg, group, steps_per_epoch, origin, say)
    parameters = [parameter for parameter in raw_model.parameters() if parameter.requires_grad]
    sharded = cfg.zero1 and group.backend
    make = partial(ZeroRedundancyOptimizer, optimizer_class=torch.optim.SGD) if sharded else torch.optim.SGD
    optimizer = make(parameters, lr=lr, momentum=cfg.momentum, weight_decay=cfg.wdecay)
    total_steps = cfg.max_steps or cfg.epochs * steps_per_epoch
    if cfg.warmup_steps >= 0:
        warmup_steps = cfg.warmup_steps
    else:
        warmup_steps = round(total_steps / 10 if cfg.warmup_epochs < 0 else cfg.warmup_epochs * steps_per_epoch)
    if warmup_steps >= total_steps:
        raise UserError(
            f"--warmup_steps {cfg.warmup_steps}, --warmup_epochs {cfg.warmup_epochs:g}: {warmup_steps} steps of warm-up in a run "
            f"of {total_steps}: the learning rate would never reach --lr"
        )
    return optimizer, lambda position: lr * lr_factor(position, total_steps, warmup_steps)


def scaled_lr(
    cfg: Config, group: Group, steps_per_epoch: int, origin: dict[str, int], say: Callable[[str], None]
) -> float:
    """The highest lr of the run, as get_optimizer() scales it, and a line on how it and the global batch come about."""
    global_batch = cfg.batchsize * cfg.accum_steps * group.world_size
    processes = f"{group.world_size} process(es)"
    if cfg.total_batchsize:
        lr = cfg.lr
        say(
            f"lr {lr:g}, as given: --total_batchsize {global_batch} does not grow with the processes; it is divided by {processes} "
            f"x --accum_steps {cfg.accum_steps}: --batchsize {cfg.batchsize}; {steps_per_epoch} steps an epoch"
        )
    else:
        size = origin["world_size"] * global_batch / origin["global_batch"]
        rule = {"linear": size, "sqrt": math.sqrt(size), "none": 1.0}[cfg.lr_scaling]
        lr = cfg.lr * rule
        say(
            f"lr {cfg.lr:g} x {rule:g} (--lr_scaling {cfg.lr_scaling}, {processes}) = {lr:g}; "
            f"global batch {global_batch} = --batchsize {cfg.batchsize} "
            f"x --accum_steps {cfg.accum_steps} x {processes}; {steps_per_epoch} steps an epoch"
        )
    if (group.world_size, global_batch) != (origin["world_size"], origin["global_batch"]):
        kept = "that batch is kept, and so are lr and result"
        if global_batch != origin["global_batch"]:
            follows = (
                f"the lr follows it by --lr_scaling {cfg.lr_scaling}; --accum_steps or --total_batchsize can keep it"
            )
            kept = f"now it is {global_batch}, and {'the lr stays' if cfg.total_batchsize else follows}"
        say(
            f"the run began with {origin['world_size']} process(es) and a global batch of {origin['global_batch']}; {kept}"
        )
    return lr


def get_state(
    cfg: Config, group: Group, loader: DataLoader, saved: dict | None, say: Callable[[str], None] = print
) -> TrainState:
    """Model, optimizer and position: of a new run, or of the checkpoint whose content is `saved`."""
    sampler = loader.sampler
    assert isinstance(sampler, TrainSampler)
    raw_model, model = get_model(cfg, group, say, pretrained=saved is None)
    origin = {"world_size": group.world_size, "global_batch": sampler.global_batch}
    listing = digest(loader.dataset.listing)  # type: ignore[attr-defined]
    continues = saved is not None and not cfg.reset_data_offset
    if saved is not None and continues:
        origin = saved["origin"]
        changed = "training list" if saved["listing"] != listing else "--seed"
        if saved["samples"] and (saved["listing"], saved["config"]["seed"]) != (listing, cfg.seed):
            raise UserError(
                f"--resume {cfg.resume}: the {changed} has changed in the middle of an epoch; restore it, resume a "
                "checkpoint from between two epochs, or start over from these weights by --reset_data_offset"
            )
    optimizer, lr_at = get_optimizer(cfg, raw_model, group, sampler.steps_per_epoch, origin, say)
    scaler = torch.amp.GradScaler(group.device.type, enabled=cfg.amp == "fp16")
    ema = AveragedModel(raw_model, multi_avg_fn=get_ema_multi_avg_fn(cfg.ema)) if cfg.ema else None
    state = TrainState(raw_model, model, optimizer, lr_at, scaler, ema, origin=origin, listing=listing)
    torch.manual_seed(cfg.seed + group.rank)
    if saved is not None:
        say(f"flags changed since: {config.changes(saved['config'], cfg) or 'none'}")
        state.restore(saved, group, optimizer=not cfg.reset_optimizer, position=continues)
    return state

"""Where flags become objects: get_loader, get_model, get_state; criterion.py has the losses, optimizer.py the optimizer."""

import contextlib
import dataclasses
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

import config
import models
from config import Config
from config.shared import LaunchFlags
from criterion import active_terms
from data import demo
from data.dataset import SegmentationDataset, image_size
from data.distance import pseudo_distance, scribble_distance
from data.layout import find_files
from data.sampler import EvalBatches, TrainSampler
from data.transforms import CentreCrop, TrainTransform
from distributed.checks import digest
from distributed.group import Group, process_group
from errors import UserError
from labels import MAPS
from loaders import make_loader, share_out
from losses.criterion import Criterion
from models import pretrained
from models.amp import LossScaler
from models.pretrained import StartWeights
from optimizer import begin, get_optimizer, saved_origin
from runs import checkpoint
from runs.state import TrainState
from runs.summary import Summary, summarise

DEMO_ROOT = Path("dataset/demo")

# {distance map: (the map to compute it from, the function)}, used where no folder has the distance map.
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
    """The process group that the flags ask for, or this one process; distributed.group.process_group."""
    return process_group(
        distributed=cfg.distributed, device=cfg.device, backend=cfg.backend, dist_url=cfg.dist_url,
        world_size=cfg.world_size, rank=cfg.rank, local_rank=cfg.local_rank, timeout=cfg.dist_timeout,
        debug=cfg.log_level == "DEBUG",
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
    compute = {
        name: (COMPUTE[name][0], partial(COMPUTE[name][1], background=cfg.background_class))
        for name in MAPS[cfg.dataset] if name in COMPUTE and not paths[name]
    }  # fmt: skip
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
    # Ranks may list other files, which distributed.checks.check_setup finds after this.
    return [sizes.get(index, (0, 0)) for index in range(len(dataset))]


def get_start(
    cfg: Config, group: Group, saved: dict | None, say: Callable[[str], None] = print
) -> tuple[Config, StartWeights | None]:
    """The flags with the stride_in_1x1 that the weights need, on every rank, and the start weights, on rank 0.

    A run that resumes the checkpoint whose content is `saved` has no start weights. Raises UserError where those of a
    new run cannot be read or downloaded.
    """
    if saved is not None:
        stride_in_1x1 = saved["config"].get("stride_in_1x1", False)
        if stride_in_1x1 != cfg.stride_in_1x1:
            say(f"--stride_in_1x1 is {'on' if stride_in_1x1 else 'off'}, as in the checkpoint")
        return dataclasses.replace(cfg, stride_in_1x1=stride_in_1x1), None
    read = partial(pretrained.read_start_weights, cfg.pretrained, cfg.layers, checkpoint.read)
    start, needed = group.on_main(read, f"loading --pretrained {cfg.pretrained}"), False
    if start is not None:
        needed = pretrained.needs_stride_in_1x1(start.state_dict, f"--pretrained {start.source}") and cfg.layers >= 50
    # Only rank 0 reads the file, but every rank builds the model.
    if group.broadcast(needed) and not cfg.stride_in_1x1:
        say(pretrained.STRIDE_IS_SET.format(path=f"--pretrained {cfg.pretrained}"))
        cfg = dataclasses.replace(cfg, stride_in_1x1=True)
    return cfg, start


def get_model(
    cfg: Config, group: Group, say: Callable[[str], None] = print, start: StartWeights | None = None
) -> tuple[models.Segmenter, nn.Module]:
    """The model on this process's device, and what to call in training: its DDP wrapper, or the model itself.

    start: start weights, which rank 0 alone has; the wrapper sends them to the other ranks.
    """
    torch.manual_seed(cfg.seed)
    raw_model = _build(cfg)
    if start is not None:
        say(pretrained.load_start_weights(raw_model, start, cfg.layers))
    if cfg.sync_bn == "on" and group.device.type != "cuda":
        raise UserError(
            f"--sync_bn on with device {group.device}: torch's SyncBatchNorm needs CUDA; use --sync_bn auto"
        )
    if cfg.sync_bn != "off" and group.device.type == "cuda" and group.world_size > 1 and not cfg.freeze_bn:
        raw_model = nn.SyncBatchNorm.convert_sync_batchnorm(raw_model)
    # Images arrive as (B, H, W, 3): channels last is their own order, and the faster one for convolutions.
    raw_model = raw_model.to(group.device).to(memory_format=torch.channels_last)
    return raw_model, group.wrap(raw_model, static_graph=cfg.static_graph, find_unused=cfg.find_unused_parameters)


def _build(cfg: Config) -> models.Segmenter:
    model = models.build(
        cfg.model_type, layers=cfg.layers, num_classes=cfg.numclasses, stride_in_1x1=cfg.stride_in_1x1,
        head_init=cfg.head_init, freeze_bn=cfg.freeze_bn, grad_checkpointing=cfg.grad_checkpointing,
        lorm_scope=cfg.lorm_scope, background=cfg.background_class,
    )  # fmt: skip
    if model.lorm is not None and "lorm" not in active_terms(cfg):
        model.lorm.requires_grad_(False)  # DDP waits for a gradient of whatever wants one
    return model


def get_summary(cfg: Config, group: Group, criterion: Criterion) -> Summary:
    """What the model and a process's training with these losses take."""
    with torch.device("meta"):
        model = _build(cfg)
    return summarise(
        model, criterion, batchsize=cfg.batchsize, crop_size=cfg.crop_size, amp=cfg.amp, ema=cfg.ema > 0,
        momentum=cfg.momentum > 0, momentum_shards=group.world_size if cfg.zero1 else 1,
    )  # fmt: skip


def get_state(
    cfg: Config, group: Group, loader: DataLoader, saved: dict | None, say: Callable[[str], None] = print,
    start: StartWeights | None = None,
) -> TrainState:  # fmt: skip
    """Model, optimizer and position: of a new run, or of the checkpoint whose content is `saved`."""
    sampler = loader.sampler
    assert isinstance(sampler, TrainSampler)
    raw_model, model = get_model(cfg, group, say, start)
    origin = begin(cfg, group.world_size, sampler.steps_per_epoch)
    listing = digest(loader.dataset.listing)  # type: ignore[attr-defined]
    continues = saved is not None and not cfg.reset_data_offset
    if saved is not None and continues:
        origin = saved_origin(saved, len(loader.dataset))  # type: ignore[arg-type]
        changed = "training list" if saved["listing"] != listing else "--seed"
        if saved["samples"] and (saved["listing"], saved["config"]["seed"]) != (listing, cfg.seed):
            raise UserError(
                f"--resume {cfg.resume}: the {changed} has changed in the middle of an epoch; restore it, resume a "
                "checkpoint from between two epochs, or start over from these weights by --reset_data_offset"
            )
    optimizer, lr_at = get_optimizer(cfg, raw_model, group, sampler.steps_per_epoch, origin, say)
    scaler = LossScaler(group.device, enabled=cfg.amp == "fp16")
    ema = AveragedModel(raw_model, multi_avg_fn=get_ema_multi_avg_fn(cfg.ema)) if cfg.ema else None
    state = TrainState(raw_model, model, optimizer, lr_at, scaler, ema, origin=origin, listing=listing)
    torch.manual_seed(cfg.seed + group.rank)
    if saved is not None:
        say(f"flags changed since: {config.changes(saved['config'], cfg) or 'none'}")
        state.restore(saved, group, optimizer=not cfg.reset_optimizer, position=continues)
    return state

"""Where flags become objects: get_loader, get_model, get_criterion, get_optimizer."""

import functools
import math
import os
from collections.abc import Callable
from pathlib import Path

import cv2
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset, Sampler

import models
from config import Config
from data import demo
from data.dataset import SegmentationDataset, read_list
from data.distance import pseudo_distance, scribble_distance
from data.sampler import EvalSampler, TrainSampler
from data.transforms import TrainTransform
from engine import checkpoint
from engine.distributed import Group
from engine.losses import NEEDS, TERMS, Criterion
from errors import UserError
from models.backbone import imagenet_weights
from models.pretrained import load_weights

DEMO_ROOT = Path("dataset/demo")
CLASS_PRESETS = Path(__file__).parent / "configs" / "classes"

# The label maps of a training sample, by --dataset.
MAPS = {
    "Dense": ("label",),
    "ScribbleOnly": ("label",),
    "PseudoOnly": ("pseudo",),
    "ScribblePseudo": ("label", "pseudo"),
    "ScribblePseudoDs": ("label", "pseudo", "distance_s"),
    "ScribblePseudoDc": ("label", "pseudo", "distance_c"),
    "ScribblePseudoDsDc": ("label", "pseudo", "distance_s", "distance_c"),
}
# How a distance map is made where no folder has it: from which map, and by what.
COMPUTE = {"distance_s": ("label", scribble_distance), "distance_c": ("pseudo", pseudo_distance)}


def prepare_demo_data(cfg: Config, group: Group) -> None:
    """Draw the demo data set where --dataset_path names it: one process a machine draws, the others wait."""
    if Path(cfg.dataset_path) == DEMO_ROOT:
        if group.local_rank == 0:
            demo.draw_dataset(DEMO_ROOT)
        group.barrier()


def get_loader(cfg: Config, split: str, group: Group) -> DataLoader:
    """The loader of this process's share of a split, "train" or "val".

    Train: batches of uint8 maps {"image": (B, H, W, 3), and those of MAPS: (B, H, W)}, H = W = crop_size;
    sampler.set_epoch(epoch) chooses the order. Val: batches of one image at its own size, with "label".
    Raises UserError on folders, lists or files that are not there.
    """
    root = Path(cfg.dataset_path)
    if not root.is_dir():
        raise UserError(f"--dataset_path {root}: no such folder")
    names = read_list(
        _first_folder(root, cfg.list_path, "ImageSets/SegmentationAug", "ImageSets/Segmentation") / f"{split}.txt"
    )
    folders = {"image": root / cfg.image_path}
    dense = ("SegmentationClassAug", "SegmentationClass")
    if split == "val":
        folders["label"] = _first_folder(root, cfg.val_path, *dense)
        val_set = SegmentationDataset(names, folders, cfg.numclasses)
        shard = EvalSampler(len(val_set), rank=group.rank, world_size=group.world_size)
        return _loader(cfg, group, val_set, shard, batch_size=1)

    scribbles = ("pascal_2012_scribble",)
    compute = {}
    for name in MAPS[cfg.dataset]:
        if name == "label":
            folders[name] = _first_folder(root, cfg.train_path, *(dense if cfg.dataset == "Dense" else scribbles))
        elif name == "pseudo":
            folders[name] = root / cfg.pseudo_path
        else:
            folder = cfg.distancemap_s if name == "distance_s" else cfg.distancemap_c
            if folder:
                folders[name] = root / folder
            else:
                compute[name] = COMPUTE[name]
    train_set = SegmentationDataset(
        names, folders, cfg.numclasses, transform=TrainTransform(cfg.crop_size), compute=compute, seed=cfg.seed
    )
    sampler = TrainSampler(
        len(train_set), batch_size=cfg.batchsize, accum_steps=cfg.accum_steps, seed=cfg.seed,
        rank=group.rank, world_size=group.world_size,
    )  # fmt: skip
    return _loader(cfg, group, train_set, sampler, batch_size=cfg.batchsize)


def _first_folder(root: Path, chosen: str, *usual: str) -> Path:
    """The chosen folder below root, or else the first of the usual ones that is there."""
    if chosen:
        return root / chosen
    return next((root / name for name in usual if (root / name).is_dir()), root / usual[0])


def _loader(cfg: Config, group: Group, dataset: Dataset, sampler: Sampler, batch_size: int) -> DataLoader:
    workers = cfg.workers
    if workers < 0:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        workers = min(4, max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", group.world_size))))
    return DataLoader(
        dataset,
        batch_size=batch_size,
        sampler=sampler,
        num_workers=workers,
        worker_init_fn=_init_worker,
        pin_memory=group.device.type == "cuda",
        persistent_workers=workers > 0,
        # Of its own, so that starting workers draws nothing from the generator that dropout draws from.
        generator=torch.Generator(),
    )


def _init_worker(worker_id: int) -> None:
    cv2.setNumThreads(0)  # the workers themselves are the parallelism


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
        _load_pretrained(cfg, raw_model, say)
    if raw_model.lorm is not None and "lorm" not in _active_terms(cfg):
        raw_model.lorm.requires_grad_(False)  # DDP waits for a gradient of whatever wants one
    if cfg.sync_bn == "on" and group.device.type != "cuda":
        raise UserError(
            f"--sync_bn on with device {group.device}: torch's SyncBatchNorm needs CUDA; use --sync_bn auto"
        )
    if cfg.sync_bn != "off" and group.device.type == "cuda" and group.world_size > 1 and not cfg.freeze_bn:
        raw_model = nn.SyncBatchNorm.convert_sync_batchnorm(raw_model)
    # Images arrive as (B, H, W, 3): channels last is their own order, and the faster one for convolutions.
    raw_model = raw_model.to(group.device).to(memory_format=torch.channels_last)
    return raw_model, group.wrap(raw_model)


def _load_pretrained(cfg: Config, raw_model: models.Segmenter, say: Callable[[str], None]) -> None:
    if cfg.pretrained.lower() == "none":
        say("start weights: random (--pretrained none)")
        return
    if cfg.pretrained == "imagenet":
        try:
            state_dict = imagenet_weights(cfg.layers)
        except (OSError, RuntimeError) as error:  # no network, no space, a broken download
            raise UserError(
                f"--pretrained imagenet: ResNet-{cfg.layers}'s weights cannot be downloaded ({str(error).splitlines()[0]}): "
                "connect, give a FILE, or use --pretrained none"
            ) from None
    else:
        content = checkpoint.read(Path(cfg.pretrained))
        parts = (content.get("model"), content.get("state_dict"), content)  # ours, CDSP's, torchvision's
        state_dict = next(part for part in parts if isinstance(part, dict))
    state_dict = {
        name: value for name, value in state_dict.items() if isinstance(value, torch.Tensor) and isinstance(name, str)
    }
    num_copied, missing, unused = load_weights(raw_model, state_dict)
    if num_copied == 0:
        raise UserError(
            f"--pretrained {cfg.pretrained}: none of its weights fits --model_type {cfg.model_type} --layers {cfg.layers}"
        )
    say(
        f"start weights: {num_copied} from {cfg.pretrained}; left random: {_summary(missing)}; "
        f"in the file but not used: {_summary(unused)}"
    )


def _summary(names: list[str]) -> str:
    """All names if few, else how many of each part of the model."""
    if len(names) <= 6:
        return ", ".join(names) or "none"
    parts = [".".join(name.split(".")[:2]) if name.startswith("backbone.") else name.split(".")[0] for name in names]
    return ", ".join(f"{part} ({parts.count(part)})" for part in dict.fromkeys(parts))


def _active_terms(cfg: Config) -> dict[str, float]:
    """The losses that --dataset has maps for and whose weight is not 0: {term: weight}."""
    has_lorm = models.MODELS[cfg.model_type][1]
    return {
        term: weight
        for term in TERMS
        if (weight := getattr(cfg, f"l_{term}")) > 0
        and NEEDS[term] in MAPS[cfg.dataset]
        and (term != "lorm" or has_lorm)
    }


def get_criterion(cfg: Config, say: Callable[[str], None] = print) -> Criterion:
    """The losses of the run, and a line on which these are. Raises UserError where none is left."""
    active = _active_terms(cfg)
    off = [term for term in TERMS if term not in active]
    if not set(active) - {"lorm"}:  # LoRM alone would leave the head without a gradient
        raise UserError(f"--dataset {cfg.dataset} with these --l_* weights leaves no loss to train on")
    said = ", ".join(f"{weight:g} * {term}" for term, weight in active.items())
    say(
        f"losses: {said}"
        + (f" (off for --dataset {cfg.dataset}, this model or weight 0: {', '.join(off)})" if off else "")
    )
    return Criterion(active, cfg.label_smooth)


def get_optimizer(
    cfg: Config, raw_model: nn.Module, group: Group, steps_per_epoch: int, say: Callable[[str], None] = print
) -> tuple[torch.optim.Optimizer, LambdaLR]:
    """SGD, and its schedule by optimizer step: linear warm-up, then cosine to 0; the lr scaled by the world size."""
    rule = {"linear": group.world_size, "sqrt": math.sqrt(group.world_size), "none": 1}[cfg.lr_scaling]
    lr = cfg.lr * rule
    say(
        f"lr {cfg.lr:g} x {rule:g} (--lr_scaling {cfg.lr_scaling}, {group.world_size} process(es)) = {lr:g}; "
        f"global batch {cfg.batchsize * cfg.accum_steps * group.world_size} = --batchsize {cfg.batchsize} "
        f"x --accum_steps {cfg.accum_steps} x {group.world_size} process(es); {steps_per_epoch} steps an epoch"
    )
    parameters = [parameter for parameter in raw_model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=lr, momentum=cfg.momentum, weight_decay=cfg.wdecay)
    factor = functools.partial(
        lr_factor, total_steps=cfg.epochs * steps_per_epoch, warmup_steps=round(cfg.warmup_epochs * steps_per_epoch)
    )
    return optimizer, LambdaLR(optimizer, factor)


def lr_factor(step: int, total_steps: int, warmup_steps: int) -> float:
    """What the lr is multiplied by in optimizer step `step`, counted from 0."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if step >= total_steps:
        return 0.0
    return 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / (total_steps - warmup_steps)))


def get_class_names(cfg: Config) -> list[str]:
    """The names in the file --classes, or of its preset; class numbers without either."""
    if not cfg.classes:
        return [str(number) for number in range(cfg.numclasses)]
    preset = CLASS_PRESETS / f"{cfg.classes}.txt"
    try:
        names = (preset if preset.is_file() else Path(cfg.classes)).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--classes {cfg.classes}: {getattr(error, 'strerror', 'not UTF-8 text')}") from None
    names = [name.strip() for name in names if name.strip()]
    if len(names) != cfg.numclasses:
        raise UserError(f"--classes {cfg.classes}: {len(names)} names, but --numclasses is {cfg.numclasses}")
    return names

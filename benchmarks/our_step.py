"""Our training step, train.Trainer.train_step: on any device, or, alone or in a group, on a GPU that is not there."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.parallel.distributed as ddp
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

import models
import train
import utils
from benchmarks.absent_gpu import CUDA, AbsentGPU, absent_gpu
from data.histogram import count_batch
from distributed.group import Group
from distributed.precision import resolve
from flags import Config
from flags.loss_weights import loss_weights
from losses import criterion as criterion_module
from losses.upsampling import find_points
from models.lorm import find_foreground
from support.batch import Batch
from support.labels import IGNORE, MAPS
from training.record.metrics import Metrics
from training.state import TrainState


@contextlib.contextmanager
def our_step(cfg: Config, mode: AbsentGPU, world_size: int = 1) -> Iterator[tuple[Callable[[], None], TrainState]]:
    """Build a run on the absent GPU for the body. Yield (function that does a step on random batches, its state).

    Steps 1 and 2 are done, and may copy to the GPU: they make the momentum and, in a group, DDP's buckets. Operations
    are recorded in the body alone. The comparison of ranks in a process's first step is left out.
    """
    cfg = dataclasses.replace(cfg, amp=resolve(cfg.amp, CUDA))
    with contextlib.ExitStack() as stack:
        group = Group(CUDA, world_size=world_size, local_world_size=world_size)
        if world_size > 1:
            group = Group(CUDA, world_size=world_size, local_world_size=world_size, backend="fake")
            dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
            stack.callback(dist.destroy_process_group)
        batches = [random_batch(cfg) for _ in range(cfg.accum_steps)]
        mode.pin({name: value for name, value in vars(batch).items() if isinstance(value, Tensor)} for batch in batches)
        mode.pin({"positions": batch.foreground.positions} for batch in batches if batch.foreground)
        mode.check_copies = mode.recording = False
        stack.enter_context(absent_gpu(mode))
        stack.enter_context(pixel_kernel_on())
        # It reads the other ranks' shapes.
        stack.enter_context(mock.patch.object(ddp, "_verify_param_shape_across_processes"))
        trainer = make_trainer(cfg, group)

        def step() -> None:
            trainer.train_step(batches)

        step()
        step()
        mode.check_copies = mode.recording = True
        yield step, trainer.state


def make_trainer(cfg: Config, group: Group) -> train.Trainer:
    """Return a Trainer without loaders, folder and log: what train_step() needs."""
    raw_model, model = utils.get_model(cfg, group)
    if isinstance(model, DistributedDataParallel) and group.backend == "fake":
        model.register_comm_hook(None, _all_reduce)
    weights = [1.0] * cfg.numclasses if cfg.class_weights != "none" else None
    criterion = utils.get_criterion(cfg, raw_model, weights)
    optimizer = utils.get_optimizer(cfg, group, raw_model, cfg.lr)
    train_set = mock.MagicMock(listing=[], __len__=lambda self: cfg.batchsize)
    state = utils.get_state(cfg, group, raw_model, model, optimizer, mock.MagicMock(origin={}), train_set)  # type: ignore[arg-type]
    run = SimpleNamespace(metrics=Metrics(group), writer=SimpleNamespace(check=lambda: None))
    run.metrics._bar = mock.MagicMock()
    sampler = SimpleNamespace(global_batch=cfg.batchsize * cfg.accum_steps * group.world_size)
    schedule = SimpleNamespace(lr=lambda state: cfg.lr, steps_done=lambda state: 1.0, total_steps=1)
    state.steps_in_process = 1  # a process's first step compares the ranks
    state.model.train()
    parts: list = [cfg, group, run, state, criterion, schedule]
    loader = SimpleNamespace(sampler=sampler)
    return train.Trainer(*parts, train_loader=loader, val_loader=None, classes=None)  # type: ignore[arg-type]


@contextlib.contextmanager
def pixel_kernel_on() -> Iterator[None]:
    """Let the pixel losses use their Triton kernel in the body, all but its launch; without Triton, nothing changes."""
    try:
        from losses import pixel_kernel
    except ImportError:
        yield
        return

    grid = mock.MagicMock()
    grid.__getitem__.return_value = lambda *args, **sizes: None  # a MagicMock would keep its arguments alive
    with (
        mock.patch.object(pixel_kernel, "_pixels", grid),
        mock.patch.object(criterion_module, "find_kernel", return_value=pixel_kernel.run),
    ):
        yield


def random_batch(cfg: Config) -> Batch:
    """Return a batch of noise as a loader makes it: a quarter is foreground, 3 % of pixels have a scribble."""
    shape = (cfg.batchsize, cfg.crop_size, cfg.crop_size)
    maps = {name: torch.randint(0, cfg.numclasses, shape, dtype=torch.uint8) for name in MAPS[cfg.dataset]}
    if "pseudo" in maps:
        maps["pseudo"][:, cfg.crop_size // 2 :] = 0
        maps["pseudo"][:, :, cfg.crop_size // 2 :] = 0
    if cfg.dataset.startswith("Scribble"):
        maps["label"][torch.rand(shape) > 0.03] = IGNORE
    batch = Batch(torch.zeros(*shape, 3, dtype=torch.uint8), **maps)
    derived: dict = {"counts": count_batch(batch)}
    if MAPS[cfg.dataset] == ("label",):
        derived["points"] = find_points(maps["label"])
    if "lorm" in loss_weights(cfg):
        with torch.device("meta"):
            backbone = models.build(cfg.model_type, **cfg.architecture).backbone
        size = backbone.feature_size(cfg.crop_size, cfg.crop_size)
        derived["foreground"] = find_foreground(maps["pseudo"], size=size, background=cfg.background_class)
    return dataclasses.replace(batch, **derived)


def _all_reduce(_state: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Average a bucket as DDP does: its own all-reduce wants a future that the fake group has not."""
    buffer = bucket.buffer().div_(dist.get_world_size())
    dist.all_reduce(buffer)
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(buffer)
    return future

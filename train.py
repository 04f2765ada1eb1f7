"""Train a semantic-segmentation model from scribbles or dense masks.

python train.py                                  # one device; without data, on the drawn demo
python train.py --dataset_path VOC2012           # your data
bash train_torchrun.sh --dataset_path VOC2012    # the same run on every GPU of this machine
torchrun --nnodes 2 --nproc_per_node 8 --rdzv_backend c10d --rdzv_endpoint HOST:PORT train.py --dataset_path VOC2012
"""

import sys
from collections.abc import Iterable, Iterator
from itertools import islice

import torch
from torch.utils.data import DataLoader

import config
import errors
from config import Config
from data.sampler import TrainSampler
from engine import checkpoint
from engine.checkpoint import TrainState
from engine.distributed import Group, gradient_sync, process_group
from engine.inference import panel, predict
from engine.logger import Run, table
from engine.losses import Criterion
from engine.metrics import confusion_matrix, scores
from utils import get_class_names, get_criterion, get_loader, get_model, get_optimizer, prepare_demo_data

AMP_DTYPES = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}
NUM_PANELS = 4  # pictures for TensorBoard of each validation


def main(argv: list[str] | None = None) -> None:
    cfg = config.parse(argv)
    with process_group(
        distributed=cfg.distributed, device=cfg.device, backend=cfg.backend, dist_url=cfg.dist_url,
        world_size=cfg.world_size, rank=cfg.rank, local_rank=cfg.local_rank, timeout=cfg.dist_timeout,
    ) as group:  # fmt: skip
        train(cfg, group)


def train(cfg: Config, group: Group) -> None:
    run = Run(group, cfg.log_interval)
    run.info(start_line(cfg, group), every_rank=True)
    if group.backend and cfg.distributed is None:
        run.info("joining the group of a launcher, as RANK and WORLD_SIZE are set; --no_distributed would not")
    for note in cfg.notes:
        run.info(note)
    config.check_equal(group.gather(config.as_dict(cfg)))
    prepare_demo_data(cfg, group)
    train_loader, val_loader = get_loader(cfg, "train", group), get_loader(cfg, "val", group)
    class_names = get_class_names(cfg)
    criterion = get_criterion(cfg, run.info)
    resume_from = run.find_checkpoint(cfg.logdir, cfg.name, cfg.resume)
    # model is the DDP wrapper, or raw_model itself
    raw_model, model = get_model(cfg, group, run.info, pretrained=resume_from is None)
    steps_per_epoch = len(train_loader) // cfg.accum_steps
    optimizer, schedule = get_optimizer(cfg, raw_model, group, steps_per_epoch, run.info)
    scaler = torch.amp.GradScaler(group.device.type, enabled=cfg.amp == "fp16")
    state = TrainState(raw_model, model, optimizer, schedule, scaler)

    torch.manual_seed(cfg.seed + group.rank)
    if resume_from:
        saved_config = checkpoint.restore(resume_from, state, steps_per_epoch, group.rank, group.device)
        run.info(f"resuming {resume_from} after epoch {state.epoch}, step {state.step}")
        run.info(f"flags changed since: {config.changes(saved_config, cfg) or 'none'}")
    run.open(cfg.logdir, cfg.name, config.dump(cfg), state.step)
    run.info(f"writing to {run.folder}")

    while state.epoch < cfg.epochs:
        train_one_epoch(cfg, group, run, state, train_loader, criterion)
        group.average_buffers(raw_model)
        group.check_weights(raw_model)
        if group.world_size > 1:
            run.info(f"epoch {state.epoch}: weights are equal on all {group.world_size} ranks")
        miou = validate(cfg, group, run, state, val_loader, class_names) if validation_due(cfg, state.epoch) else None
        save(cfg, group, run, state, miou)

    run.info(
        f"done: {state.epoch} epochs, {state.step} steps, best mIoU {100 * state.best_miou:.2f}. The run lies in {run.folder}"
    )
    run.info(f"to look at it: tensorboard --logdir {cfg.logdir}")
    run.close()


def train_one_epoch(
    cfg: Config, group: Group, run: Run, state: TrainState, loader: DataLoader, criterion: Criterion
) -> None:
    """One pass over the training list; each step of it is one global batch."""
    assert isinstance(loader.sampler, TrainSampler)
    loader.sampler.set_epoch(state.epoch)
    state.model.train()
    steps = batched(loader, cfg.accum_steps)
    for micro_batches in run.steps(steps, total=loader.sampler.steps, title=f"epoch {state.epoch + 1}/{cfg.epochs}"):
        # Every loss is divided by a count over the global batch, known before the first backward pass.
        counts = [criterion.counts(batch, state.raw_model.lorm_terms) for batch in micro_batches]
        global_counts = group.sum(torch.stack(counts).sum(0))
        parts = torch.zeros(len(criterion.weights), device=group.device)
        for number, batch in enumerate(micro_batches, start=1):
            batch = {name: values.to(group.device, non_blocking=True) for name, values in batch.items()}
            with gradient_sync(state.model, enabled=number == cfg.accum_steps):
                with autocast(cfg, group):
                    outputs = state.model(batch["image"], batch["pseudo"] if "lorm" in criterion.weights else None)
                micro_parts = criterion(outputs, batch, global_counts)
                # DDP takes the mean over ranks of what is a sum over them.
                state.scaler.scale(criterion.total(micro_parts) * group.world_size).backward()
            parts = parts + micro_parts.detach()
        lr = float(state.schedule.get_last_lr()[0])
        state.scaler.step(state.optimizer)
        state.scaler.update()
        state.optimizer.zero_grad()
        state.schedule.step()
        state.step += 1
        losses = criterion.named(group.sum(parts))
        run.log_step(state.epoch + 1, state.step, losses, lr, loader.sampler.global_batch)
    state.epoch += 1


@torch.inference_mode()
def validate(
    cfg: Config, group: Group, run: Run, state: TrainState, loader: DataLoader, class_names: list[str]
) -> float:
    """The mIoU over the whole validation list, each image once and at its own size; rank 0 writes all scores."""
    state.raw_model.eval()
    confusion = torch.zeros(cfg.numclasses, cfg.numclasses, dtype=torch.int64, device=group.device)
    panels: list[torch.Tensor] = []
    for batch in run.bar(loader, total=len(loader), title="validation"):
        image, label = (batch[name].to(group.device, non_blocking=True) for name in ("image", "label"))
        with autocast(cfg, group):
            predicted = predict(state.raw_model, image)
        confusion += confusion_matrix(predicted, label, cfg.numclasses)
        if group.is_main and len(panels) < NUM_PANELS:
            panels.append(panel(image[0], label[0], predicted[0]))
    result = scores(group.sum(confusion))
    run.log_validation(state.epoch, state.step, result, class_names, panels)
    run.info(f"epoch {state.epoch}: mIoU {100 * result['miou']:.2f}, pixel accuracy {100 * result['pixel_acc']:.2f}")
    if state.epoch == cfg.epochs:
        run.info(table(result, class_names))
    return result["miou"]


def validation_due(cfg: Config, epochs_done: int) -> bool:
    if epochs_done == cfg.epochs:
        return True
    return epochs_done > cfg.val_start_epoch and epochs_done % cfg.val_epoch_frequency == 0


def save(cfg: Config, group: Group, run: Run, state: TrainState, miou: float | None) -> None:
    """last.pt after every epoch; best.pt when the mIoU rose; epoch_NNNN.pt when asked for. Rank 0 writes."""
    miou = -1.0 if miou is None else miou
    is_best = miou > state.best_miou
    state.best_miou = max(miou, state.best_miou)
    rng = group.gather(checkpoint.rng_state(group.device))
    if not group.is_main:
        return
    assert run.folder is not None
    content = checkpoint.to_dict(state, rng, config.as_dict(cfg))
    if is_best:
        checkpoint.save(run.folder / "best.pt", content)
    if cfg.save_epoch_frequency and state.epoch % cfg.save_epoch_frequency == 0:
        checkpoint.save(run.folder / f"epoch_{state.epoch:04d}.pt", content)
    # At the end: a run killed before that repeats the epoch, and writes the others again.
    checkpoint.save(run.folder / "last.pt", content)


def autocast(cfg: Config, group: Group) -> torch.autocast:
    dtype = AMP_DTYPES[cfg.amp]
    return torch.autocast(group.device.type, dtype=dtype, enabled=dtype is not None)


def batched(items: Iterable, size: int) -> Iterator[list]:
    """Lists of `size` items each; the sampler sees to it that they come out even."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def start_line(cfg: Config, group: Group) -> str:
    kind = f"in a group ({group.backend})" if group.backend else "no process group"
    return (
        f"rank {group.rank}, local rank {group.local_rank}, world size {group.world_size}, device {group.device}, {kind}, "
        f"batch {cfg.batchsize} per process, {cfg.batchsize * cfg.accum_steps * group.world_size} global"
    )


if __name__ == "__main__":
    sys.exit(errors.run(main))

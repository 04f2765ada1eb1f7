"""Checks that all ranks agree before and after the first optimizer step, when an error costs seconds, not days.

All checks are collective: every rank calls them, learns the same, and raises the same UserError.
"""

import hashlib
import socket
from collections.abc import Collection
from itertools import zip_longest
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import Tensor, nn

from distributed.group import Group
from support.errors import DivergedError, UserError

STEADIER = "lower --lr, warm up for longer, or use --amp bf16 or none"


def compare_flags(group: Group, flags: dict, local: Collection[str]) -> None:
    """Raise UserError unless all ranks have the same `flags` {name: value}, apart from names in `local`. Collective."""
    flags = {f"--{name}": value for name, value in flags.items() if name not in local}
    _check_facts(group, flags, "give all ranks the same")


def check_setup(group: Group, datasets: dict) -> None:
    """Raise UserError unless ranks agree on versions, device type and lists of files. Collective.

    datasets: {description, such as "training list": a dataset with a `listing`, a list of strings}.
    """
    # NumPy draws the order of samples and the augmentations, and OpenCV computes them: results may depend on versions.
    versions = {"torch": torch.__version__, "NumPy": np.__version__, "OpenCV": cv2.__version__}
    _check_facts(group, versions, "install the same version on all machines")
    digests = code_digests() if group.world_size > 1 else {}
    if _first_other_rank(group.gather(digest([*digests, *digests.values()]))):
        _check_facts(group, digests, "use the same code on all machines")
    _check_facts(group, {"backend": group.backend, "device": group.device.type}, "give all ranks the same")
    for name, dataset in datasets.items():
        rank = _first_other_rank(group.gather(digest(dataset.listing)))  # a digest, because lists may be long
        if rank:
            listings = group.gather(dataset.listing)
            pairs = enumerate(zip_longest(listings[0], listings[rank], fillvalue="missing"), start=1)
            entry = next(f"entry {number} is {b!r}, not {a!r}" for number, (a, b) in pairs if a != b)
            raise UserError(
                f"the {name} of rank {rank} differs from rank 0's: {entry}; --dataset_path must lead to the same files "
                "on all machines"
            )


def code_digests() -> dict[str, str]:
    """Return {file: digest of its lines} of the Python files that train.py runs."""
    root = Path(__file__).resolve().parents[1]
    rooms = ("data", "distributed", "flags", "inference", "losses", "models", "support", "training")
    in_rooms = (file for room in rooms for file in (root / room).rglob("[!.]*.py"))
    files = sorted([root / "train.py", root / "utils.py", *in_rooms])
    texts = {file.relative_to(root).as_posix(): file.read_text(encoding="utf-8") for file in files}
    return {name: digest([text])[:8] for name, text in texts.items()}


def check_gpus(group: Group) -> None:
    """Raise UserError if two ranks share a GPU. Collective."""
    name = ""
    if group.device.type == "cuda":
        properties = torch.cuda.get_device_properties(group.device)
        # By uuid: with CUDA_VISIBLE_DEVICES, two ranks may call different GPUs cuda:0.
        name = f"{properties.name} {getattr(properties, 'uuid', group.device)} of {socket.gethostname()}"
    gpus = group.gather(name)
    for rank, gpu in enumerate(gpus):
        if gpu and gpus.index(gpu) != rank:
            raise UserError(
                f"ranks {gpus.index(gpu)} and {rank} are both on {gpu}: each needs a GPU of its own; check "
                "LOCAL_RANK and CUDA_VISIBLE_DEVICES"
            )


def check_gradients(group: Group, raw_model: nn.Module) -> None:
    """Raise UserError unless each trained parameter has a gradient, equal on all ranks. Collective.

    Call this between the backward pass and the optimizer step. Without a process group, a parameter needs no gradient.
    """
    trained = {name: parameter for name, parameter in raw_model.named_parameters() if parameter.requires_grad}
    unused = [name for name, parameter in trained.items() if parameter.grad is None]
    if unused and group.backend:
        # Raise before any collective: ranks that have these gradients wait in one for the others.
        raise UserError(
            f"{_few(unused)} got no gradient on rank {group.rank}: the loss does not depend on it; remove it, "
            "or freeze it by requires_grad_(False)"
        )
    gradients = {name: parameter.grad for name, parameter in trained.items() if parameter.grad is not None}
    advice = "gradients are not summed over ranks; train the module that Group.wrap() returns"
    _check_same(group, gradients, "gradient of ", advice)


def check_weights(group: Group, raw_model: nn.Module, *, compare_batch_norm: bool) -> None:
    """Check that parameters are finite, and that parameters and buffers are equal on all ranks. Collective.

    compare_batch_norm: False between calls of Group.average_buffers(), when batch-norm statistics differ between ranks:
    these are not compared. Raises DivergedError on inf or nan, UserError on a difference.
    """
    local = set() if compare_batch_norm else _local_buffers(raw_model)
    values = {name: value for name, value in raw_model.state_dict().items() if name not in local}
    check_finite(raw_model)  # first: nan on all ranks is equal, and the reason for a difference
    advice = "train the module that Group.wrap() returns, and change weights in the same way on all ranks"
    _check_same(group, values, "", advice)


def check_finite(raw_model: nn.Module) -> None:
    """Raise DivergedError if a parameter or a statistic of the model contains inf or nan."""
    state_dict = raw_model.state_dict()
    values = {name: value for name, value in state_dict.items() if value.is_floating_point() and value.numel()}
    finite = torch.stack([value.abs().max() for value in values.values()]).isfinite()
    if not finite.all():
        name = next(name for name, good in zip(values, finite, strict=True) if not good)
        raise DivergedError(
            f"the weights are no longer finite ({name}): {STEADIER}; last.pt, if there is one, has finite weights"
        )


def digest(listing: list[str]) -> str:
    """Return the SHA-256 of a list of strings, as 64 hexadecimal digits. File names need not be UTF-8."""
    return hashlib.sha256("\n".join(listing).encode(errors="surrogateescape")).hexdigest()


def _first_other_rank(values: list) -> int:
    """Return the first index whose value differs from values[0]; 0 if all are equal. values: one per rank."""
    return next((rank for rank, value in enumerate(values) if value != values[0]), 0)


def _check_facts(group: Group, facts: dict, remedy: str) -> None:
    """Raise UserError unless all ranks have the same `facts` {name: value}. Collective. remedy: ends the message."""
    by_rank = group.gather(facts)
    rank = _first_other_rank(by_rank)
    for name in by_rank[0] | by_rank[rank]:
        first, other = (by_rank[number].get(name, "missing") for number in (0, rank))
        if first != other:
            raise UserError(f"{name} is {first} on rank 0 but {other} on rank {rank}: {remedy}")


def _local_buffers(raw_model: nn.Module) -> set[str]:
    """Return the names of the batch-norm buffers that differ between ranks: all but those of synchronised norms."""
    return {
        name
        for prefix, module in raw_model.named_modules()
        if hasattr(module, "running_mean") and not getattr(module, "synchronized", False)
        for name, _ in module.named_buffers(prefix, recurse=False)
    }


def _check_same(group: Group, values: dict[str, Tensor], kind: str, advice: str) -> None:
    if group.world_size == 1:
        return
    sums = torch.stack([_checksum(value) for value in values.values()]).tolist()
    by_rank = group.gather(dict(zip(values, sums, strict=True)))
    rank = _first_other_rank(by_rank)
    if rank:
        differ = [name for name in by_rank[0] | by_rank[rank] if by_rank[0].get(name) != by_rank[rank].get(name)]
        raise UserError(f"{kind}{_few(differ)} differs between rank 0 and rank {rank}: {advice}")


def _checksum(value: Tensor) -> Tensor:
    """Return an int64 scalar that changes if any bit of the tensor does, or if neighbours swap places."""
    kind = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[value.element_size()]
    bits = value.detach().contiguous().view(kind).flatten()
    even = len(bits) // 1024 * 1024
    sums = torch.cat([bits[:even].view(-1, 1024).sum(0, dtype=torch.int64), bits[even:].long()])
    return (sums * torch.arange(1, 2 * len(sums), 2, device=sums.device)).sum()  # odd factors, modulo 2**64


def _few(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"

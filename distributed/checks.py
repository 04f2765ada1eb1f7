"""What must hold on all ranks before and after the first optimizer step, checked while it costs seconds, not days.

All checks are collective: every rank calls them, learns the same, and raises the same UserError.
"""

import hashlib
import socket
from collections.abc import Collection
from typing import NoReturn

import cv2
import numpy as np
import torch
from torch import Tensor, nn

from distributed.group import Group
from errors import DivergedError, UserError


def check_flags(group: Group, flags: dict, local: Collection[str]) -> None:
    """Check that ranks were started with the same flags {name: value}, but for those named in `local`."""
    every = group.gather({name: value for name, value in flags.items() if name not in local})
    for rank, other in enumerate(every):
        for name in other:
            if other[name] != every[0][name]:
                raise UserError(
                    f"--{name} is {every[0][name]} on rank 0 but {other[name]} on rank {rank}: give all ranks the same"
                )


def check_setup(group: Group, datasets: dict, order: np.ndarray | None = None) -> None:
    """Check that all ranks have the same library versions, device type, data and order of samples, and no GPU twice.

    datasets: {what it is, such as "training list": data.dataset.SegmentationDataset}. order: the first epoch's
    permutation of the training list, TrainSampler.order().
    """
    # NumPy draws the order of samples and the augmentations, and OpenCV computes them: results may differ by version.
    versions = {"torch": torch.__version__, "NumPy": np.__version__, "OpenCV": cv2.__version__}
    facts = versions | {"backend": group.backend, "device": group.device.type}
    every = group.gather((facts, _gpu_of_this_process(group.device)))
    for rank, (other, _) in enumerate(every):
        for what, value in other.items():
            if value != every[0][0][what]:
                remedy = "install the same version on all machines" if what in versions else "give all ranks the same"
                raise UserError(f"{what} is {every[0][0][what]} on rank 0 but {value} on rank {rank}: {remedy}")
    owners: dict[str, int] = {}
    for rank, (_, gpu) in enumerate(every):
        if gpu and owners.setdefault(gpu, rank) != rank:
            raise UserError(
                f"ranks {owners[gpu]} and {rank} are both on {gpu}: each needs a GPU of its own; check LOCAL_RANK and "
                "CUDA_VISIBLE_DEVICES"
            )
    for what, dataset in datasets.items():
        listing = dataset.listing
        digests = group.gather(digest(listing))
        odd = next((rank for rank, other in enumerate(digests) if other != digests[0]), None)
        if odd is not None:
            listings = group.gather(listing)
            difference = _first_difference(listings[0], listings[odd])
            raise UserError(f"the {what} of rank {odd} differs from rank 0's: {difference}")
    orders = group.gather(None if order is None else hashlib.sha256(order.astype(np.int64).tobytes()).hexdigest())
    for rank, other in enumerate(orders):
        if other != orders[0]:
            raise UserError(
                f"the order of samples in epoch 1 differs between rank 0 and rank {rank}: install the same version of this "
                "repository and of NumPy on all machines"
            )


def digest(listing: list[str]) -> str:
    """SHA-256 of a list of strings."""
    return hashlib.sha256("\n".join(listing).encode()).hexdigest()


def _first_difference(one: list[str], other: list[str]) -> str:
    for number, (a, b) in enumerate(zip(one, other, strict=False), start=1):
        if a != b:
            return f"entry {number} is {b!r}, not {a!r}; --dataset_path must lead to the same files on all machines"
    return f"it has {len(other)} entries, not {len(one)}; --dataset_path must lead to the same files on all machines"


def _gpu_of_this_process(device: torch.device) -> str:
    if device.type != "cuda":
        return ""
    properties = torch.cuda.get_device_properties(device)
    return f"{properties.name} {getattr(properties, 'uuid', device)} of {socket.gethostname()}"


def check_gradients(group: Group, raw_model: nn.Module, *, unused_allowed: bool) -> list[str]:
    """Check, between backward pass and optimizer step, that each parameter has a gradient, the same on all ranks.

    Returns the names of parameters without one where that is allowed, as it is for a single process.
    """
    trained = {name: parameter for name, parameter in raw_model.named_parameters() if parameter.requires_grad}
    unused = [name for name, parameter in trained.items() if parameter.grad is None]
    if unused and group.backend and not unused_allowed:
        # Not after a collective: ranks that do have these gradients wait in one for them.
        raise UserError(
            f"{_few(unused)} got no gradient on rank {group.rank}: the loss does not depend on it; remove it, freeze it by "
            "requires_grad_(False), or use --find_unused_parameters"
        )
    gradients = {name: parameter.grad for name, parameter in trained.items() if parameter.grad is not None}
    _check_same(
        group, gradients, "gradient of", "gradients are not summed over ranks; train through what Group.wrap() returns"
    )
    return unused


def check_weights(group: Group, raw_model: nn.Module, *, buffers_averaged: bool) -> None:
    """Check that parameters are finite and, with the buffers, the same on all ranks.

    buffers_averaged: False between Group.average_buffers() calls, when the statistics of batch norm layers that
    are not synchronised are each rank's own.
    """
    own = set() if buffers_averaged else _local_buffers(raw_model)
    values = {name: value for name, value in raw_model.state_dict().items() if name not in own}
    check_finite(raw_model)
    _check_same(
        group, values, "", "it does not stay the same on all ranks; train through what Group.wrap() returns, and do "
        "not change it by what differs between ranks",
    )  # fmt: skip


def raise_not_finite(group: Group, problem: str, losses: Tensor) -> NoReturn:
    """Raise DivergedError on every rank. losses: this rank's parts, to name the ranks that are to blame. Collective."""
    finite = group.gather(bool(losses.isfinite().all()))
    ranks = [rank for rank, good in enumerate(finite) if not good]
    raise DivergedError(f"{problem}, from rank(s) {ranks}: lower --lr, warm up for longer, or use --amp bf16 or none")


def check_finite(raw_model: nn.Module) -> None:
    """Check that no weight has become inf or nan."""
    finite = torch.stack([parameter.detach().abs().max() for parameter in raw_model.parameters()]).isfinite()
    if not finite.all():
        name = next(name for (name, _), good in zip(raw_model.named_parameters(), finite, strict=True) if not good)
        raise DivergedError(
            f"the weights are no longer finite ({name}): lower --lr, warm up for longer, or use --amp bf16 or none; "
            "last.pt is from before"
        )


def _local_buffers(raw_model: nn.Module) -> set[str]:
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in raw_model.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and not isinstance(module, nn.SyncBatchNorm)
        for name, _ in module.named_buffers(recurse=False)
    }


def _check_same(group: Group, values: dict[str, Tensor], kind: str, advice: str) -> None:
    if group.world_size == 1:
        return
    sums = torch.stack([_checksum(value) for value in values.values()]).tolist()
    every = group.gather(dict(zip(values, sums, strict=True)))
    for rank, other in enumerate(every):
        differ = [name for name in every[0].keys() | other.keys() if every[0].get(name) != other.get(name)]
        if differ:
            in_order = [name for name in values if name in differ] or differ
            raise UserError(f"{kind} {_few(in_order)} differs between rank 0 and rank {rank}: {advice}".lstrip())


def _checksum(value: Tensor) -> Tensor:
    """A number, int64, that changes with any bit of the tensor, and where neighbours change places."""
    kind = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[value.element_size()]
    bits = value.detach().contiguous().view(kind).flatten()
    even = len(bits) // 1024 * 1024
    sums = torch.cat([bits[:even].view(-1, 1024).sum(0, dtype=torch.int64), bits[even:].long()])
    return (sums * torch.arange(1, 2 * len(sums), 2, device=sums.device)).sum()  # odd factors, modulo 2**64


def _few(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"

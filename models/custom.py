"""A network of the user's own as a model: --model_type FILE.py:NAME, PACKAGE.MODULE:NAME or smp:NAME."""

import ast
import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from models.backbone import IMAGENET_MEAN, IMAGENET_STD, Backbone, cut_padding, pad_to_multiple
from models.heads import Head
from models.layers.blocks import use_our_layers
from support import shell
from support.errors import UserError
from support.log import log
from support.user_code import SMP, describe, load

WEIGHT_TYPES = {torch.float32, torch.float16, torch.bfloat16, torch.float64}
WEIGHT_TYPES |= {torch.int64, torch.int32, torch.uint8, torch.bool}  # of buffers
PROBE = (97, 113)  # (height, width) of the image that tells what a network can do
MULTIPLES = (1, 2, 4, 8, 16, 32, 64)  # of which a network may need image sides, as most U-Nets do


class LogitsHead(Head):
    """The head of a network that returns logits itself: it has no parts."""

    def __init__(self, channels: Sequence[int], num_classes: int, *, stride: int = 1):
        super().__init__()


class CustomNetwork(Backbone):
    """A network of the user's own, from normalised images to logits. Its parameters are named net.NAME.

    source: FILE.py:NAME or PACKAGE.MODULE:NAME, a function of num_classes, and smp:NAME with `encoder`, timm:NAME or a
    name of smp's own. arguments: words "name=value" for the function. The function returns an nn.Module whose output is
    logits (B, num_classes, h, w) at any stride, or holds them as "out", "logits" or the first element. It may set
    image_mean and image_std, three numbers of 0..1 each; the default is ImageNet's. Images are padded if the network
    needs sides that are multiples of a power of two. Raises UserError if the code fails or returns something else.
    """

    def __init__(self, source: str, num_classes: int, arguments: Sequence[str] = (), encoder: str = ""):
        super().__init__()
        self.source = source
        build: Callable = _smp(source, encoder) if source.startswith(SMP) else load("--model_type", source).value
        self.net = self._build(build, num_classes, read_arguments(arguments))
        self.mean = self._colours("image_mean", IMAGENET_MEAN)
        self.std = self._colours("image_std", IMAGENET_STD)
        use_our_layers(self.net)
        self.multiple, size = self._probe(num_classes)
        self.channels, self.strides = (num_classes,), (max(1, 2 ** round(math.log2(PROBE[1] / size))),)

    def _build(self, build: Callable, num_classes: int, arguments: dict[str, Any]) -> nn.Module:
        if not callable(build) or isinstance(build, nn.Module):
            raise UserError(f"--model_type {self.source}: is a {type(build).__name__}: name a class or a function")
        given = ", ".join(["num_classes", *arguments])
        try:
            net = build(num_classes=num_classes, **arguments)
        except UserError:
            raise
        except Exception as error:  # of any class: it is the user's code
            problem = f"building it with {given} failed: {describe(error)}"
            raise UserError(f"--model_type {self.source}: {problem}") from error
        if not isinstance(net, nn.Module):
            raise UserError(f"--model_type {self.source}: returned a {type(net).__name__}, not a torch.nn.Module")
        tensors = [*net.parameters(), *net.buffers()]
        is_lazy = any(map(nn.parameter.is_lazy, tensors))  # such tensors have no dimensions yet
        kinds = ", ".join(sorted({str(value.dtype) for value in tensors if value.dtype not in WEIGHT_TYPES}))
        problems = {
            "has lazy layers: give them their sizes": is_lazy,
            "has no parameters to train": not any(True for _ in net.parameters()),
            "has 3-D convolutions, which cannot be channels-last": not is_lazy and any(x.dim() > 4 for x in tensors),
            f"has weights of {kinds}, which checkpoints do not hold": bool(kinds),
        }
        for problem, is_so in problems.items():
            if is_so:
                raise UserError(f"--model_type {self.source}: {problem}")
        return net

    def _colours(self, name: str, default: tuple[float, ...]) -> tuple[float, ...]:
        """Return the network's image_mean or image_std. Raises UserError unless it is three numbers of 0 to 1."""
        values = tuple(map(float, getattr(self.net, name, default)))
        if (
            len(values) != 3
            or not all(0 <= value <= 1 for value in values)
            or (name == "image_std" and not all(values))
        ):
            raise UserError(f"--model_type {self.source}: its {name} is {values}: it must be three numbers of 0 to 1")
        return values

    @torch.no_grad()
    def _probe(self, num_classes: int) -> tuple[int, int]:
        """Return (multiple of which sides must be, width of the logits of an image of PROBE's size)."""
        problem = ""
        net = copy.deepcopy(self.net).eval()
        for multiple in MULTIPLES:
            images = torch.zeros(2, 3, *PROBE)
            padded = pad_to_multiple(images, multiple)
            try:
                logits = logits_in(net(padded))
            except Exception as error:  # of any class: it is the user's code
                problem = problem or describe(error)
                continue
            if logits is None or logits.ndim != 4 or logits.shape[:2] != (2, num_classes):
                got = "no tensor" if logits is None else f"a tensor of shape {tuple(logits.shape)}"
                raise UserError(
                    f"--model_type {self.source}: for images (2, 3, H, W) it returns {got}: return logits "
                    f"(2, {num_classes}, h, w), or a dict with them as 'out' or 'logits'"
                )
            if not logits.is_floating_point() or not logits.isfinite().all():
                raise UserError(f"--model_type {self.source}: its logits of a grey image are not finite real numbers")
            return multiple, cut_padding(logits, images, padded).shape[3]
        raise UserError(f"--model_type {self.source}: its forward pass fails: {problem}")

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the logits, as the only map of features, of normalised images (B, 3, H, W)."""
        padded = pad_to_multiple(images, self.multiple)
        logits = logits_in(self.net(padded))
        assert logits is not None
        return (cut_padding(logits, images, padded),)

    def is_head(self, name: str) -> bool:
        return self.depths().get(name, 0) > 0  # what follows the first part, such as an encoder

    def freeze_unused(self, head: nn.Module) -> None:
        net = copy.deepcopy(self.net).train()
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            logits = logits_in(net(pad_to_multiple(torch.zeros(2, 3, *PROBE), self.multiple)))
            assert logits is not None
            if not logits.requires_grad:
                raise UserError(f"--model_type {self.source}: its logits have no gradient: they are detached")
            logits.sum().backward()
        unused = [name for name, parameter in net.named_parameters() if parameter.grad is None]
        for name in unused:
            self.net.get_parameter(name).requires_grad_(False)
        if unused:
            log.info(
                f"frozen, because the logits do not depend on them: {', '.join(unused[:4])}{' ...' * (len(unused) > 4)}"
            )


def in_own_network(name: str) -> str:
    """Return a weight's name in a Segmenter of a CustomNetwork, from its name there or in the network alone."""
    return name if name.startswith("backbone.") else f"backbone.net.{name}"


def logits_in(output: Any) -> Tensor | None:
    """Return the logits in the output of a network: torchvision's dicts, transformers' objects, tuples; None: none."""
    if isinstance(output, Mapping):
        output = output.get("out", output.get("logits"))
    elif not isinstance(output, Tensor):
        output = getattr(output, "logits", output[0] if isinstance(output, tuple | list) and output else None)
    return output if isinstance(output, Tensor) else None


def read_arguments(words: Sequence[str]) -> dict[str, Any]:
    """Return {name: value} of words "name=value". Values are Python literals, such as 3, [1, 2] or None, or else text.

    Raises UserError on other words.
    """
    arguments: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise UserError(f"--model_args {word}: write NAME=VALUE, such as width=32")
        try:
            arguments[name] = ast.literal_eval({"true": "True", "false": "False"}.get(value.lower(), value))
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):  # which ast.literal_eval() may raise
            arguments[name] = value
    return arguments


def _smp(source: str, encoder: str) -> Callable:
    """Return a function of num_classes that builds a network of segmentation_models.pytorch with random weights."""
    smp: Any = shell.import_extra("segmentation_models_pytorch", "smp", "--model_type smp:NAME")
    name = source.removeprefix(SMP)
    architectures = {key.lower(): key for key, value in vars(smp).items() if inspect.isclass(value)}
    if name.lower() not in architectures:
        known = ", ".join(sorted(value for value in architectures.values()))
        raise UserError(f"--model_type {source}: segmentation_models.pytorch has no {name}: it has {known}")
    own = f"tu-{encoder.removeprefix('timm:')}" if encoder.startswith("timm:") else f"resnet{encoder}"

    def build(num_classes: int, **arguments: Any) -> nn.Module:
        options = {"encoder_weights": None, "encoder_name": own} | arguments
        return getattr(smp, architectures[name.lower()])(classes=num_classes, **options)

    return build

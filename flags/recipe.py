"""The recipe: from the data and the device, choose the flags that decide how well a model trains.

train.py uses these values for flags that are not set, and the data check prints them in its command. Imports no torch.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from support.labels import BACKGROUND

# What a Recipe may choose.
RECIPE_FLAGS = frozenset({
    "layers", "long_side", "crop_size", "batchsize", "accum_steps", "max_steps", "repeat", "val_step_frequency",
    "optimizer", "lr", "lr_scaling", "wdecay", "background", "l_crf",
})  # fmt: skip
# With one of them an epoch is a pass over the list.
COUNT_EPOCHS = {"epochs", "warmup_epochs", "val_epoch_frequency", "val_start_epoch", "save_epoch_frequency"}
FEW_STEPS = 150  # a run of fewer steps says little about what the model can learn
ENOUGH_STEPS = 2 * FEW_STEPS  # however large the global batch is
NUM_VALIDATIONS = 20
CRF_WEIGHT = 0.3  # benchmarks/RESULTS.md
EPOCHS = 50  # CDSP's; a small list is passed over more often
MANY_IMAGES = 5000  # for so many images, CDSP trains from pseudo-labels with a learning rate of 1e-3
# Parts of the names of timm's transformers.
TRANSFORMERS = ("vit", "beit", "deit", "eva", "swin", "xcit", "twins", "pvt", "former", "coat", "cait", "volo", "hiera")

# Estimated GiB of GPU memory, as in the table of docs/recipes.md: for each image of 465x465 in float32, by --layers;
# and for the weights and CUDA's libraries.
GIB_PER_IMAGE = {18: 0.13, 34: 0.2, 50: 0.44, 101: 0.78, 152: 1.1}
GIB_OF_MODEL = 1.5


class Device(NamedTuple):
    """What a kind of device can train in reasonable time. crop_size: in pixels. steps: least and most."""

    name: str
    layers: int
    crop_size: int
    batchsize: int
    steps: tuple[int, int]


CUDA = Device("a GPU", 50, 465, 16, (4000, 80_000))
CPU = Device("a CPU", 18, 240, 8, (1000, 1000))


@dataclass(frozen=True)
class Facts:
    """What the recipe depends on.

    dataset: --dataset. sizes: (height, width) of training images, or of some of them. device: CUDA or CPU. memory: of
    one GPU, in GiB; 0: unknown. world_size: number of processes. large: the --long_side that resizes images which are
    much larger than a crop; 0: most are not. first_class: name of class 0; "": unknown.
    """

    dataset: str
    num_images: int
    sizes: Sequence[tuple[int, int]]
    device: Device
    memory: float = 0.0
    world_size: int = 1
    large: int = 0
    first_class: str = ""


class Choice(NamedTuple):
    """The value of a flag, and why."""

    value: Any
    reason: str


class Recipe:
    """The choices for all flags of the recipe that are not given: attribute `choices`, {flag: Choice}.

    flags: {flag: value}, defaults included. given: names of the flags that are set; they are kept, and the others fit
    them: a smaller --batchsize takes more steps, for example.
    """

    def __init__(self, facts: Facts, flags: dict[str, Any], given: Collection[str]):
        self.facts, self.flags, self.given = facts, dict(flags), set(given)
        self.choices: dict[str, Choice] = {}
        self._choose_layers()
        self._choose_sizes()
        self._choose_batch()
        if self._may_choose_steps:
            self._choose_steps()
        elif not COUNT_EPOCHS & self.given:
            self._choose_repeat(self._batch * self.flags["max_steps"] / 10)
        self._choose_optimizer()
        if facts.dataset in ("ScribbleOnly", "ScribblePseudo"):
            self._choose("l_crf", CRF_WEIGHT, "strokes do not show where objects end")
        if facts.first_class and facts.first_class.lower() not in BACKGROUND:
            self._choose("background", "none", f"class 0 is {facts.first_class}")

    @property
    def _may_choose_steps(self) -> bool:
        return not {"epochs", "max_steps", "warmup_epochs"} & self.given

    def _choose(self, name: str, value: Any, reason: str) -> None:
        assert name in RECIPE_FLAGS
        if name not in self.given:
            self.choices[name] = Choice(value, reason)
            self.flags[name] = value

    def _choose_layers(self) -> None:
        flags, device = self.flags, self.facts.device
        # A weights file fits one depth only, and --stride_in_1x1 goes with such a file.
        any_depth = flags["pretrained"] in ("imagenet", "imagenet_v1", "none") and not flags["stride_in_1x1"]
        if flags["backbone"] == "resnet" and any_depth:
            self._choose("layers", device.layers, f"for {device.name}")

    def _choose_sizes(self) -> None:
        device = self.facts.device
        # Stored distances are in pixels of the original images.
        may_resize = not {"window", "distancemap_s", "distancemap_c"} & self.given
        if self.facts.large and may_resize:
            remedy = f"for small details, use --window {device.crop_size} instead"
            self._choose("long_side", self.facts.large, f"images are much larger than a crop; {remedy}")
        longest = max((max(size) for size in self.facts.sizes), default=device.crop_size)
        covering = max(17, 8 * math.ceil((self.flags["long_side"] or longest) / 8) + 1)
        if covering < device.crop_size:
            self._choose("crop_size", covering, "shows the whole image")
        else:
            self._choose("crop_size", device.crop_size, f"for {device.name}")

    def _choose_batch(self) -> None:
        if {"batchsize", "total_batchsize"} & self.given:
            return
        size, room = self.facts.device.batchsize, math.inf
        # Samples of a rank in an epoch, divided by --accum_steps.
        samples = self.facts.num_images * self.flags["repeat"] // (self.facts.world_size * self.flags["accum_steps"])
        if not self._may_choose_steps:  # else _choose_steps() makes the epoch longer
            size = max(1, min(size, samples))
        if self.facts.memory:
            area = (self.flags["crop_size"] / 465) ** 2
            room = (self.facts.memory - GIB_OF_MODEL) / (GIB_PER_IMAGE[self.flags["layers"]] * area)
        fitting = size if size <= room else next((number for number in (8, 4, 2) if number <= room), 1)
        is_short = fitting == size < self.facts.device.batchsize
        self._choose("batchsize", fitting, "an epoch has few samples" if is_short else f"for {self.facts.device.name}")
        if fitting <= size // 2:
            self._choose("accum_steps", size // fitting, f"a batch of {size} in {self.facts.memory:.3g} GiB")

    @property
    def _batch(self) -> int:
        """Return the global batch."""
        flags = self.flags
        return flags["total_batchsize"] or flags["batchsize"] * flags["accum_steps"] * self.facts.world_size

    def _choose_steps(self) -> None:
        facts, batch = self.facts, self._batch
        least, most = facts.device.steps
        images = facts.device.batchsize * min(max(EPOCHS * facts.num_images // facts.device.batchsize, least), most)
        steps = max(math.ceil(images / batch), ENOUGH_STEPS)
        self._choose("max_steps", steps, f"shows each image {steps * batch / facts.num_images:.4g} times")
        self._choose_repeat(facts.device.batchsize * least / NUM_VALIDATIONS)
        if facts.num_images / batch > 2 * steps / NUM_VALIDATIONS and "val_epoch_frequency" not in self.given:
            self._choose("val_step_frequency", 2 * steps // NUM_VALIDATIONS, "an epoch is long")

    def _choose_repeat(self, num_images: float) -> None:
        """Make an epoch at least one global batch and `num_images` long, as each epoch ends with a validation."""
        least = max(self._batch, num_images)
        if least > self.facts.num_images:
            repeat = math.ceil(least / self.facts.num_images)
            between = repeat * self.facts.num_images // self._batch
            self._choose("repeat", repeat, f"{between} steps from one validation to the next")

    def _choose_optimizer(self) -> None:
        backbone = self.flags["backbone"]
        if backbone != "resnet":
            kept = next((name for name in ("lr", "momentum") if name in self.given), "")
            reason = f"as --{kept} is set; adamw is usual" if kept else "usual for networks of timm"
            self._choose("optimizer", "sgd" if kept else "adamw", reason)
        if self.flags["optimizer"] == "adamw":
            is_transformer = any(part in backbone for part in TRANSFORMERS)
            self._choose("lr", 1e-4 if is_transformer else 1e-3, "usual for adamw")
            self._choose("wdecay", 0.01, "usual for adamw")
            self._choose("lr_scaling", "sqrt", "usual for adamw")
        elif "Pseudo" in self.facts.dataset and self.facts.num_images >= MANY_IMAGES:
            self._choose("lr", 1e-3, "as CDSP, for many images")
        else:
            self._choose("lr", 0.01, "usual for sgd and a new head")

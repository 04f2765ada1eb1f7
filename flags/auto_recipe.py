"""The recipe: from the data and the device, choose the flags that decide how well a model trains.

train.py uses these values for flags that are not set, and the data check prints them in its command. Imports no torch.
"""

import difflib
import math
from collections.abc import Sequence, Set
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

from support.labels import BACKGROUND, DENSE, OBJECT_MAPS
from support.user_code import is_code, is_own_network

# What the recipe may choose.
RECIPE_FLAGS = frozenset({
    "layers", "long_side", "crop_size", "batchsize", "accum_steps", "max_steps", "repeat", "val_step_frequency",
    "optimizer", "lr", "lr_scaling", "wdecay", "background", "l_crf", "loss", "head_lr_factor",
    "brightness", "contrast", "saturation", "hue",
})  # fmt: skip
LENGTH = frozenset({"epochs", "max_steps", "warmup_epochs"})  # with one of them, the recipe chooses no length
# The recipe chooses these only with the length (but ce+dice always): results of configs with a length would change.
LEARNING = frozenset({"loss", "head_lr_factor", "brightness", "contrast", "saturation", "hue"})
# With one of them an epoch is a pass over the list.
COUNT_EPOCHS = {"epochs", "warmup_epochs", "val_epoch_frequency", "val_start_epoch", "save_epoch_frequency"}
NUM_SIZES = 100  # images whose sizes are read
MAX_REPEAT = 10**6  # as the flag --repeat allows
FEW_STEPS = 150  # a run of fewer steps says little about what the model can learn
ENOUGH_STEPS = 2 * FEW_STEPS  # however large the global batch is
NUM_VALIDATIONS = 20  # at most, of the shortest run that the recipe chooses
CRF_WEIGHT = 0.3  # benchmarks/RESULTS.md
RARE = 0.03  # of the pixels: with cross entropy alone, a class with less may never be predicted (RESULTS.md)
COLOURS = {"brightness": 0.3, "contrast": 0.3, "saturation": 0.3, "hue": 0.03}  # RESULTS.md, "Another street"
MANY_CLASSES = 32  # with more, lovasz takes much memory
EPOCHS = 50  # CDSP's; a small list is passed over more often
MANY_IMAGES = 5000  # for so many images, CDSP trains from pseudo-labels with a learning rate of 1e-3
# Parts of the names of timm's transformers.
TRANSFORMERS = ("vit", "beit", "deit", "eva", "swin", "xcit", "twins", "pvt", "former", "coat", "cait", "volo", "hiera")

# Estimated GiB of GPU memory, as in the table of docs/recipes.md: for each image of 465x465 in float32, by --layers;
# and for the weights and CUDA's libraries.
GIB_PER_IMAGE = {18: 0.13, 34: 0.2, 50: 0.44, 101: 0.78, 152: 1.1}
GIB_OF_MODEL = 1.5


class Device(NamedTuple):
    """What a kind of device can train in reasonable time. crop_size: pixels. steps: the least and the most."""

    name: str
    layers: int
    crop_size: int
    batchsize: int
    steps: tuple[int, int]


CUDA = Device("a GPU", 50, 465, 16, (4000, 80_000))
CPU = Device("a CPU", 18, 240, 8, (1000, 1000))


@dataclass
class Recipe:
    """What the recipe knows of a run, and what it chooses.

    flags: {flag: value}, defaults included. given: names of the flags that are set; they are kept, and the others fit
    them: a smaller --batchsize takes more steps, for example. sizes: (height, width) of the training images, or of some
    of them. memory: one GPU's memory in GiB; 0: unknown. world_size: number of processes. large: the --long_side that
    resizes images which are much larger than a crop; 0: most are not. class_names: (): unknown. shares: each class's
    share of the labelled pixels in dense masks; (): unknown, or other labels. new_part: what of the network the start
    weights leave random; "": nothing.
    """

    flags: dict[str, Any]
    given: Set[str]
    device: Device
    num_images: int
    sizes: Sequence[tuple[int, int]]
    _: KW_ONLY
    memory: float = 0.0
    world_size: int = 1
    large: int = 0
    class_names: Sequence[str] = ()
    shares: Sequence[float] = ()
    new_part: str = "the head"

    def __post_init__(self) -> None:
        self.flags = dict(self.flags)  # a copy, since _choose() writes to it
        self.choices: dict[str, tuple[Any, str]] = {}
        self.chooses_steps = not LENGTH & self.given
        self.chooses_all = self.chooses_steps and self.flags["dataset"] in DENSE  # see LEARNING

    def choose_flags(self) -> dict[str, tuple[Any, str]]:
        """Return {flag: (value, reason)} for the recipe's flags that are not given."""
        # In this order: each choice may depend on those before it.
        self._choose_network()
        self._choose_sizes()
        self._choose_batch()
        self._choose_length()
        self._choose_optimizer()
        self._choose_loss()
        return self.choices

    def _choose(self, name: str, value: Any, reason: str) -> None:
        assert name in RECIPE_FLAGS
        if name not in self.given:
            self.choices[name] = value, reason
            self.flags[name] = value

    def _choose_network(self) -> None:
        flags = self.flags
        # A weights file fits one depth only, and --stride_in_1x1 goes with such a file.
        any_depth = flags["pretrained"] in ("imagenet", "imagenet_v1", "none") and not flags["stride_in_1x1"]
        if flags["backbone"] == "resnet" and any_depth and not is_code(flags["model_type"]):
            self._choose("layers", self.device.layers, f"for {self.device.name}")

    def _choose_sizes(self) -> None:
        """Choose the sizes of images and crops."""
        device = self.device
        # Stored distances are in pixels of the original images, so --long_side does not go with them.
        if self.large and not {"window", "distancemap_s", "distancemap_c"} & self.given:
            remedy = f"for small details, use --window {device.crop_size} instead"
            self._choose("long_side", self.large, f"images are much larger than a crop; {remedy}")
        longest = max((max(size) for size in self.sizes), default=device.crop_size)
        covering = max(17, 8 * math.ceil((self.flags["long_side"] or longest) / 8) + 1)
        shows_all = covering < device.crop_size
        reason = "shows the whole image" if shows_all else f"for {device.name}"
        self._choose("crop_size", covering if shows_all else device.crop_size, reason)

    def _choose_batch(self) -> None:
        flags, device = self.flags, self.device
        if {"batchsize", "total_batchsize"} & self.given:
            return
        size = device.batchsize
        if not self.chooses_steps:  # an epoch may be shorter than a batch; else _choose_length() makes it long enough
            samples_of_pass = self.num_images * flags["repeat"] // (self.world_size * flags["accum_steps"])  # on a rank
            size = max(1, min(size, samples_of_pass))
        gib_per_image = GIB_PER_IMAGE[flags["layers"]] * (flags["crop_size"] / 465) ** 2
        room = (self.memory - GIB_OF_MODEL) / gib_per_image if self.memory else math.inf
        fitting = size if size <= room else next((number for number in (8, 4, 2) if number <= room), 1)
        is_short = fitting == size < device.batchsize
        self._choose("batchsize", fitting, "an epoch has few samples" if is_short else f"for {device.name}")
        if fitting <= size // 2:
            self._choose("accum_steps", size // fitting, f"a batch of {size} in {self.memory:.3g} GiB")

    def _choose_length(self) -> None:
        """Choose the length of the run, and of an epoch: each epoch ends with a validation."""
        flags, given, device = self.flags, self.given, self.device
        batch = flags["total_batchsize"] or flags["batchsize"] * flags["accum_steps"] * self.world_size
        epoch = 0.0  # images that an epoch needs
        if self.chooses_steps:
            least, most = device.steps
            images = device.batchsize * min(max(EPOCHS * self.num_images // device.batchsize, least), most)
            steps = max(math.ceil(images / batch), ENOUGH_STEPS)
            self._choose("max_steps", steps, f"shows each image {steps * batch / self.num_images:.4g} times")
            epoch = max(batch, device.batchsize * least / NUM_VALIDATIONS)
            if self.num_images / batch > 2 * steps / NUM_VALIDATIONS and "val_epoch_frequency" not in given:
                self._choose("val_step_frequency", 2 * steps // NUM_VALIDATIONS, "an epoch is long")
        elif not COUNT_EPOCHS & given:
            epoch = max(batch, batch * flags["max_steps"] / 10)
        if epoch > self.num_images:
            repeat = min(math.ceil(epoch / self.num_images), MAX_REPEAT)
            self._choose("repeat", repeat, f"{repeat * self.num_images // batch} steps from one validation to the next")

    def _choose_optimizer(self) -> None:
        """Choose the optimizer, and its learning rates and weight decay."""
        flags, given = self.flags, self.given
        is_own = is_own_network(flags["model_type"])
        if flags["backbone"] != "resnet" or is_own:
            # --lr does not decide the optimizer: runs that differ in --lr must have one optimizer.
            usual = "usual for networks of your own" if is_own else "usual for networks of timm"
            usual += "; if the lr is for sgd, set --optimizer sgd" if "lr" in given else ""
            if "momentum" in given:
                self._choose("optimizer", "sgd", "as --momentum is set; adamw is usual")
            else:
                self._choose("optimizer", "adamw", usual)
        if flags["optimizer"] == "adamw":
            named = f"{flags['backbone']} {flags['model_type']}".lower()
            is_transformer = any(part in named for part in TRANSFORMERS)
            is_trained = flags["backbone"] != "resnet" and flags["pretrained"] != "none" and not is_transformer
            if self.chooses_all and is_trained and not {"lr", "head_lr_factor"} & given:
                self._choose("lr", 3e-4, "small for pretrained features")
                if self.new_part:
                    self._choose("head_lr_factor", 10.0, f"{self.new_part} is new")
            else:
                self._choose("lr", 1e-4 if is_transformer else 1e-3, "usual for adamw")
            self._choose("wdecay", 0.01, "usual for adamw")
            self._choose("lr_scaling", "sqrt", "usual for adamw")
        elif "Pseudo" in flags["dataset"] and self.num_images >= MANY_IMAGES:
            self._choose("lr", 1e-3, "as CDSP, for many images")
        else:
            self._choose("lr", 0.01, f"usual for sgd{' and a new head' * bool(self.new_part)}")

    def _choose_loss(self) -> None:
        """Choose the losses, --background and the colour augmentation."""
        flags, names = self.flags, self.class_names
        if flags["dataset"] in ("ScribbleOnly", "ScribblePseudo"):
            self._choose("l_crf", CRF_WEIGHT, "strokes do not show where objects end")
        is_rest = flags["label_map"] in OBJECT_MAPS  # whatever its name is
        if names and names[0].lower() not in BACKGROUND and not is_rest:
            is_slip = bool(difflib.get_close_matches(names[0].lower(), BACKGROUND, cutoff=0.8))
            self._choose("background", "none", f"class 0 is {names[0]}{', not background: is it misspelt?' * is_slip}")
        if self.chooses_all and 2 < flags["numclasses"] <= MANY_CLASSES:
            self._choose("loss", "ce+lovasz", "raises the mIoU; ce is faster")
        if self.chooses_all and flags["augment"] and not COLOURS.keys() & self.given:
            for name, value in COLOURS.items():
                self._choose(name, value, "light differs from place to place")
        if len(self.shares) == 2 and 0 < min(self.shares) < RARE:
            rare = self.shares.index(min(self.shares))
            name = f"class {rare}" + (f" ({names[rare]})" if names else "")
            self._choose("loss", "ce+dice", f"{name} has {self.shares[rare]:.2%} of the pixels")

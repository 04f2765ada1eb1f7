"""The recipe: from the data and the device, choose the flags that decide how well a model trains.

train.py uses these values for flags that are not set, and the data check prints them in its command. Imports no torch.
"""

import difflib
import math
from collections.abc import Collection, Sequence
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


def choose_flags(
    flags: dict[str, Any],
    given: Collection[str],
    device: Device,
    num_images: int,
    sizes: Sequence[tuple[int, int]],
    *,
    memory: float = 0.0,
    world_size: int = 1,
    large: int = 0,
    class_names: Sequence[str] = (),
    shares: Sequence[float] = (),
    new_part: str = "the head",
) -> dict[str, tuple[Any, str]]:
    """Return {flag: (value, reason)} for the recipe's flags that are not given.

    flags: {flag: value}, defaults included. given: names of the flags that are set; they are kept, and the others fit
    them: a smaller --batchsize takes more steps, for example. sizes: (height, width) of the training images, or of some
    of them. memory: one GPU's memory in GiB; 0: unknown. world_size: number of processes. large: the --long_side that
    resizes images which are much larger than a crop; 0: most are not. class_names: (): unknown. shares: each class's
    share of the labelled pixels in dense masks; (): unknown, or other labels. new_part: what of the network the start
    weights leave random; "": nothing.
    """
    flags, given = dict(flags), set(given)
    choices: dict[str, tuple[Any, str]] = {}

    def choose(name: str, value: Any, reason: str) -> None:
        assert name in RECIPE_FLAGS
        if name not in given:
            choices[name] = value, reason
            flags[name] = value

    # The network. A weights file fits one depth only, and --stride_in_1x1 goes with such a file.
    any_depth = flags["pretrained"] in ("imagenet", "imagenet_v1", "none") and not flags["stride_in_1x1"]
    is_own = is_own_network(flags["model_type"])
    if flags["backbone"] == "resnet" and any_depth and not is_code(flags["model_type"]):
        choose("layers", device.layers, f"for {device.name}")

    # The sizes of images and crops. Stored distances are in pixels of the original images.
    if large and not {"window", "distancemap_s", "distancemap_c"} & given:
        remedy = f"for small details, use --window {device.crop_size} instead"
        choose("long_side", large, f"images are much larger than a crop; {remedy}")
    longest = max((max(size) for size in sizes), default=device.crop_size)
    covering = max(17, 8 * math.ceil((flags["long_side"] or longest) / 8) + 1)
    shows_all = covering < device.crop_size
    reason = "shows the whole image" if shows_all else f"for {device.name}"
    choose("crop_size", covering if shows_all else device.crop_size, reason)

    # The batch. An epoch of a given length limits it; else the steps, chosen below, make the epoch long enough.
    chooses_steps = not LENGTH & given
    if not {"batchsize", "total_batchsize"} & given:
        samples = num_images * flags["repeat"] // (world_size * flags["accum_steps"])  # of a rank, per forward pass
        size = device.batchsize if chooses_steps else max(1, min(device.batchsize, samples))
        gib_per_image = GIB_PER_IMAGE[flags["layers"]] * (flags["crop_size"] / 465) ** 2
        room = (memory - GIB_OF_MODEL) / gib_per_image if memory else math.inf
        fitting = size if size <= room else next((number for number in (8, 4, 2) if number <= room), 1)
        is_short = fitting == size < device.batchsize
        choose("batchsize", fitting, "an epoch has few samples" if is_short else f"for {device.name}")
        if fitting <= size // 2:
            choose("accum_steps", size // fitting, f"a batch of {size} in {memory:.3g} GiB")
    batch = flags["total_batchsize"] or flags["batchsize"] * flags["accum_steps"] * world_size

    # The length of the run, and of an epoch: each epoch ends with a validation.
    epoch = 0.0  # images that an epoch needs
    if chooses_steps:
        least, most = device.steps
        images = device.batchsize * min(max(EPOCHS * num_images // device.batchsize, least), most)
        steps = max(math.ceil(images / batch), ENOUGH_STEPS)
        choose("max_steps", steps, f"shows each image {steps * batch / num_images:.4g} times")
        epoch = max(batch, device.batchsize * least / NUM_VALIDATIONS)
        if num_images / batch > 2 * steps / NUM_VALIDATIONS and "val_epoch_frequency" not in given:
            choose("val_step_frequency", 2 * steps // NUM_VALIDATIONS, "an epoch is long")
    elif not COUNT_EPOCHS & given:
        epoch = max(batch, batch * flags["max_steps"] / 10)
    if epoch > num_images:
        repeat = min(math.ceil(epoch / num_images), MAX_REPEAT)
        choose("repeat", repeat, f"{repeat * num_images // batch} steps from one validation to the next")

    chooses_all = chooses_steps and flags["dataset"] in DENSE  # see LEARNING

    # The optimizer. --lr does not decide it: runs that differ in --lr must have one optimizer.
    if flags["backbone"] != "resnet" or is_own:
        usual = "usual for networks of your own" if is_own else "usual for networks of timm"
        usual += "; if the lr is for sgd, set --optimizer sgd" if "lr" in given else ""
        is_sgd = "momentum" in given
        choose("optimizer", "sgd" if is_sgd else "adamw", "as --momentum is set; adamw is usual" if is_sgd else usual)
    if flags["optimizer"] == "adamw":
        named = f"{flags['backbone']} {flags['model_type']}".lower()
        is_transformer = any(part in named for part in TRANSFORMERS)
        is_trained = flags["backbone"] != "resnet" and flags["pretrained"] != "none" and not is_transformer
        if chooses_all and is_trained and not {"lr", "head_lr_factor"} & given:
            choose("lr", 3e-4, "small for pretrained features")
            if new_part:
                choose("head_lr_factor", 10.0, f"{new_part} is new")
        else:
            choose("lr", 1e-4 if is_transformer else 1e-3, "usual for adamw")
        choose("wdecay", 0.01, "usual for adamw")
        choose("lr_scaling", "sqrt", "usual for adamw")
    elif "Pseudo" in flags["dataset"] and num_images >= MANY_IMAGES:
        choose("lr", 1e-3, "as CDSP, for many images")
    else:
        choose("lr", 0.01, f"usual for sgd{' and a new head' * bool(new_part)}")

    # The loss and the classes.
    if flags["dataset"] in ("ScribbleOnly", "ScribblePseudo"):
        choose("l_crf", CRF_WEIGHT, "strokes do not show where objects end")
    is_rest = flags["label_map"] in OBJECT_MAPS  # whatever its name is
    if class_names and class_names[0].lower() not in BACKGROUND and not is_rest:
        is_slip = bool(difflib.get_close_matches(class_names[0].lower(), BACKGROUND, cutoff=0.8))
        choose("background", "none", f"class 0 is {class_names[0]}{', not background: is it misspelt?' * is_slip}")
    if chooses_all and 2 < flags["numclasses"] <= MANY_CLASSES:
        choose("loss", "ce+lovasz", "raises the mIoU; ce is faster")
    if chooses_all and flags["augment"] and not given.intersection(COLOURS):
        for name, value in COLOURS.items():
            choose(name, value, "light differs from place to place")
    if len(shares) == 2 and 0 < min(shares) < RARE:
        rare = shares.index(min(shares))
        name = f"class {rare}" + (f" ({class_names[rare]})" if class_names else "")
        choose("loss", "ce+dice", f"{name} has {shares[rare]:.2%} of the pixels")
    return choices

"""What training samples hold: the maps of each --dataset, the value that is ignored, and the colour of padding."""

IGNORE = 255  # in label maps: a pixel without a class
OBJECT_MAPS = ("binary", "threshold")  # of --label_map: class 0 is the background, class 1 the object
MEAN_COLOUR = (124, 116, 104)  # in images: padding. ImageNet's mean, RGB, 0..255

# The label maps of a training sample, by --dataset.
MAPS = {
    "Folder": ("label",),
    "Dense": ("label",),
    "ScribbleOnly": ("label",),
    "PseudoOnly": ("pseudo",),
    "ScribblePseudo": ("label", "pseudo"),
    "ScribblePseudoDs": ("label", "pseudo", "distance_s"),
    "ScribblePseudoDc": ("label", "pseudo", "distance_c"),
    "ScribblePseudoDsDc": ("label", "pseudo", "distance_s", "distance_c"),
}

DENSE = ("Folder", "Dense")  # the values of --dataset whose training labels are dense masks

# Names of the background's class, in lower case. The last two are LabelMe's.
BACKGROUND = ("background", "_background_", "__background__")


def is_foreground(label, background: int | None):
    """Return a mask, array or tensor as `label`: True where it is neither IGNORE nor `background` (if not None)."""
    labelled = label != IGNORE
    return labelled if background is None else labelled & (label != background)


def single_object(num_classes: int, background: int | None) -> int | None:
    """Return the object's class if there is one object and a background, else None.

    background: the background's class; None: each class is an object.
    """
    return 1 - background if num_classes == 2 and background is not None else None

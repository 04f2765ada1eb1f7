"""What training samples hold: the maps of each --dataset, the value that is ignored, and the colour of padding."""

IGNORE = 255  # in label maps: a pixel without a class
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

# What the loader counts in each map of a batch (data.histogram.count_batch). It stays in CPU memory.
COUNTS = {
    "label": "label_histogram",
    "pseudo": "pseudo_histogram",
    "distance_s": "distance_s_nonzero",
    "distance_c": "distance_c_nonzero",
}

# The labelled pixels of a batch whose labels are few (losses.upsampling).
POINTS = "label_points"

# LoRM's queries in a batch (models.foreground): their positions, and the number of each image, in CPU memory.
FOREGROUND = ("foreground", "foreground_counts")

# Names of the background's class, in lower case. The last two are LabelMe's.
BACKGROUND = ("background", "_background_", "__background__")


def is_foreground(label, background: int | None):
    """Return a mask, array or tensor as `label`: True where it is neither IGNORE nor `background` (if not None)."""
    labelled = label != IGNORE
    return labelled if background is None else labelled & (label != background)

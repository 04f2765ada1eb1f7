"""Draw a small scribble data set: textured shapes on textured ground, in VOC's layout.

Each image depends on its number only, so the set is the same on every machine without a download. It has dense masks,
scribbles, and pseudo-labels with realistic faults: grown or shrunk outlines, holes, unsure borders, missed objects.
"""

import tempfile
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from support.errors import UserError
from support.labels import IGNORE

CLASSES = ("ground", "disc", "square", "triangle", "cross")
HEIGHT, WIDTH = 120, 160
NUM_TRAIN, NUM_VAL = 96, 24


def draw_dataset(root: Path, num_train: int = NUM_TRAIN, num_val: int = NUM_VAL) -> None:
    """Draw the demo data set in the folder `root`, in PASCAL VOC's layout; do nothing if the folder exists.

    num_train, num_val: images per split. The folder appears only when complete. Raises UserError if it is not writable.
    """
    if root.exists():
        return
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{root.name}-", dir=root.parent) as scratch:
            folder = Path(scratch) / root.name
            _write(folder, num_train, num_val)
            folder.rename(root)
    except OSError as error:
        if root.exists():
            return  # another run was faster
        raise UserError(f"{root}: the demo data cannot be written ({error.strerror})") from None


def _write(root: Path, num_train: int, num_val: int) -> None:
    folders = ("JPEGImages", "SegmentationClassAug", "pascal_2012_scribble", "bmp_pseudolabel")
    for name in (*folders, "ImageSets/SegmentationAug"):
        (root / name).mkdir(parents=True)
    names = [f"demo_{number:04d}" for number in range(num_train + num_val)]
    (root / "ImageSets/SegmentationAug/train.txt").write_text("\n".join(names[:num_train]))
    (root / "ImageSets/SegmentationAug/val.txt").write_text("\n".join(names[num_train:]))
    (root / "classes.txt").write_text("\n".join(CLASSES))
    for number, name in enumerate(names):
        image, *labels = draw_sample(number)
        Image.fromarray(image).save(root / folders[0] / f"{name}.jpg", quality=92)
        for folder, label in zip(folders[1:], labels, strict=True):
            Image.fromarray(label).save(root / folder / f"{name}.png")


def draw_sample(number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return image number `number` of the demo data and its dense mask, scribble and pseudo-label.

    The image is (120, 160, 3) uint8 RGB. The three label maps are (120, 160) uint8: classes 0 to 4; 255 = ignored in
    scribble and pseudo-label. The same number gives the same arrays.
    """
    rng = np.random.default_rng((2024, number))
    image = _texture(0, rng)
    dense = np.zeros((HEIGHT, WIDTH), np.uint8)
    # Draw one object in each of two or three columns, so that none hides another.
    num_objects = int(rng.integers(2, 4))
    for column in range(num_objects):
        class_id = int(rng.integers(1, len(CLASSES)))
        radius = rng.uniform(18, min(36, 0.5 * WIDTH / num_objects))
        centre = ((column + 0.5) * WIDTH / num_objects + rng.uniform(-3, 3), rng.uniform(radius, HEIGHT - radius))
        shape = _shape(class_id, centre, radius, rng.uniform(0, 2 * np.pi))
        image = np.where(shape[..., None] == 1, _texture(class_id, rng), image)
        dense[shape == 1] = class_id
    image = cv2.GaussianBlur(image, (3, 3), 0).astype(np.float64) + rng.normal(0, 8, image.shape)
    return image.clip(0, 255).astype(np.uint8), dense, _scribble(dense, rng), _pseudo_label(dense, rng)


def _texture(class_id: int, rng: np.random.Generator) -> np.ndarray:
    """Return a random texture of a class, (HEIGHT, WIDTH, 3) uint8 RGB.

    Each class has a pattern (clouds, stripes, checks, dots or wavy stripes) and a base colour, to which noise is added.
    """
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(np.float64)
    angle, period, phase = rng.uniform(0, np.pi), rng.uniform(6, 9), rng.uniform(0, 2 * np.pi, 2)
    u = (np.cos(angle) * x + np.sin(angle) * y) * 2 * np.pi / period + phase[0]
    v = (np.cos(angle) * y - np.sin(angle) * x) * 2 * np.pi / period + phase[1]
    clouds = cv2.resize(rng.normal(0, 1, (HEIGHT // 10, WIDTH // 10)), (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)
    pattern = (clouds, np.sin(u), np.sign(np.sin(u) * np.sin(v)), (np.sin(u) * np.sin(v)) ** 3 * 2, np.sin(u + clouds))
    hue = np.array([(120, 125, 110), (150, 95, 80), (85, 125, 155), (140, 140, 75), (115, 85, 140)])[class_id]
    colour = hue + rng.normal(0, 15, 3)
    return (colour + 32 * pattern[class_id][..., None]).clip(0, 255).astype(np.uint8)


def _shape(class_id: int, centre: tuple[float, float], radius: float, angle: float) -> np.ndarray:
    """Return a binary mask of one object of class 1 to 4, (HEIGHT, WIDTH) uint8: 1 inside, 0 outside.

    The classes are disc, square, triangle and cross. centre: (x, y) in pixels. radius: in pixels. angle: in radians.
    """
    canvas = np.zeros((HEIGHT, WIDTH), np.uint8)
    if class_id == 1:
        return cv2.circle(canvas, (round(centre[0]), round(centre[1])), round(radius * 0.9), 1, thickness=-1)
    arm = [(1.0, 0.35), (0.35, 0.35), (0.35, 1.0)]  # a corner of the cross; mirror it for the others
    outline = {
        2: [(1, 1), (-1, 1), (-1, -1), (1, -1)],
        3: [(1.3, 0), (-0.7, 1.1), (-0.7, -1.1)],
        4: arm + [(-x, y) for x, y in reversed(arm)] + [(-x, -y) for x, y in arm] + [(x, -y) for x, y in reversed(arm)],
    }[class_id]
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    size = radius * (0.75 if class_id == 2 else 0.9)
    points = np.array(outline) @ turn.T * size + np.array(centre)
    return cv2.fillPoly(canvas, [points.round().astype(np.int32)], 1)


def _scribble(dense: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return scribbles for a dense mask (H, W) uint8: class numbers on the strokes and 255 elsewhere, (H, W) uint8.

    Each connected region of a class gets one bent stroke, 3 pixels wide, unless a 7x7 erosion removes the region.
    """
    scribble = np.full(dense.shape, IGNORE, np.uint8)
    for class_id in np.unique(dense):
        num_regions, regions = cv2.connectedComponents((dense == class_id).astype(np.uint8))
        for region in range(1, num_regions):
            inside = cv2.erode((regions == region).astype(np.uint8), np.ones((7, 7), np.uint8))
            y, x = np.nonzero(inside)
            if len(x) == 0:
                continue
            chosen = rng.choice(len(x), 4 if class_id == 0 else 3)
            points = np.stack([x[chosen], y[chosen]], axis=1)
            points = points[np.argsort(points @ rng.normal(0, 1, 2))].astype(np.int32)
            stroke = cv2.polylines(np.zeros_like(dense), [points], isClosed=False, color=1, thickness=3)
            scribble[(stroke == 1) & (dense == class_id)] = class_id
    return scribble


def _pseudo_label(dense: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a copy of a dense mask (H, W) uint8 with random faults, like a label from a classifier's activation maps.

    Objects may be missing, grow, shrink or have a hole; some pixels along borders are 255 (ignored).
    """
    pseudo = np.zeros_like(dense)
    num_regions, regions = cv2.connectedComponents((dense > 0).astype(np.uint8))
    for region in range(1, num_regions):
        if rng.random() < 0.08:
            continue  # missed
        shape = (regions == region).astype(np.uint8)
        class_id = np.bincount(dense[shape == 1]).argmax()
        width = int(rng.integers(2, 6))
        kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (width, width))
        shape = cv2.dilate(shape, kernel) if rng.random() < 0.6 else cv2.erode(shape, kernel)
        y, x = np.nonzero(shape)
        hole = rng.integers(len(x)) if len(x) else 0
        if len(x) and rng.random() < 0.5:
            cv2.circle(shape, (int(x[hole]), int(y[hole])), int(rng.integers(3, 7)), 0, thickness=-1)
        border = cv2.dilate(shape, kernel) - cv2.erode(shape, kernel)
        pseudo[shape == 1] = class_id
        pseudo[(border == 1) & (rng.random(dense.shape) < 0.3)] = IGNORE
    return pseudo

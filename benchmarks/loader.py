"""Images a second of the training loader on one core, against OpenCV and torchvision.

python benchmarks/loader.py

Dense: CamVid, crop 480. "opencv" reads image and mask with cv2.imread and warps each once, with our matrices: no
checks, no blur, no batch. "torchvision" decodes and augments uint8 tensors with transforms.v2: scale, rotation, crop,
flip. Recipe: ScribblePseudoDsDc at crop 465, one real sample repeated. Ours is the loader as train.py uses it, with
--workers 0: checks, blur, counts, and whole batches of 16.
"""

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import torch
from torch.utils.data import default_collate

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import utils
from benchmarks.measure import add_flags, measure, ratios, save, spread
from data.transforms import MEAN_COLOUR
from distributed.group import Group
from flags import parse_flags

BATCH = 16
COLOUR = ("--brightness", "0.3", "--contrast", "0.3", "--saturation", "0.3", "--hue", "0.02")


def train_loader(words: tuple[str, ...], workers: int = 0):
    flags = ["--workers", str(workers), "--batchsize", str(BATCH), "--model_type", "res50_ASPP", *words]
    loader = utils.get_loader(parse_flags(flags), "train", Group(torch.device("cpu")))
    loader.sampler.set_position(0, 0)
    return loader


def batches(loader, num: int):
    """Return the last of `num` batches, epoch after epoch."""
    while True:
        for batch in loader:
            num -= 1
            if num == 0:
                return batch


def ours(words: tuple[str, ...], num: int):
    loader = train_loader(words)

    def work():
        return len(batches(loader, num).image)

    return work


def opencv_sample(dataset, key: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    files, transform = dataset.files[key[1]], dataset.transform
    image = cv2.imread(str(files["image"]))
    label = cv2.imread(str(files["label"]), cv2.IMREAD_GRAYSCALE)
    matrix = transform._matrix(*label.shape, np.random.default_rng((dataset.seed, *key)))
    size = (transform.crop_size, transform.crop_size)
    return (
        cv2.warpAffine(image, matrix, size, flags=cv2.INTER_LINEAR, borderValue=MEAN_COLOUR[::-1]),
        cv2.warpAffine(label, matrix, size, flags=cv2.INTER_NEAREST, borderValue=255),
    )


def opencv(words: tuple[str, ...], num: int):
    loader = train_loader(words, workers=1)  # never started: the allocator stays as Python sets it
    keys = list(loader.sampler)

    def work():
        for number in range(num * BATCH):
            opencv_sample(loader.dataset, keys[number % len(keys)])

    return work


def torchvision(words: tuple[str, ...], num: int):
    from torchvision import tv_tensors
    from torchvision.io import decode_image
    from torchvision.transforms import v2

    loader, fill = train_loader(words, workers=1), {tv_tensors.Image: list(MEAN_COLOUR), tv_tensors.Mask: 255}
    size = loader.dataset.transform.crop_size
    augment = v2.Compose(
        [
            v2.ScaleJitter((size, size), (0.5, 2.0)),
            v2.RandomApply([v2.RandomRotation(10, v2.InterpolationMode.BILINEAR, fill=fill)], 0.5),
            v2.RandomCrop(size, pad_if_needed=True, fill=fill),
            v2.RandomHorizontalFlip(),
        ]
    )
    keys = list(loader.sampler)

    def sample(index: int):
        files = loader.dataset.files[index]
        image, label = decode_image(str(files["image"])), decode_image(str(files["label"]))
        return augment(tv_tensors.Image(image), tv_tensors.Mask(label))

    def work():
        for first in range(0, num * BATCH, BATCH):
            default_collate([sample(keys[(first + number) % len(keys)][1]) for number in range(BATCH)])

    return work


def check_equal(words: tuple[str, ...]) -> None:
    """Compare a batch of ours, without blur, with OpenCV's way: every pixel must be equal."""
    loader = train_loader(words)
    object.__setattr__(loader.dataset.transform, "blur", 0.0)
    keys = list(loader.sampler)[:BATCH]
    batch = next(iter(loader))
    for number, key in enumerate(keys):
        image, label = opencv_sample(loader.dataset, key)
        assert np.array_equal(batch.image[number], image[..., ::-1]), key
        assert np.array_equal(batch.label[number], label), key


def report(figures, baseline: str, num: int) -> None:
    print(f"| | images a second | over {baseline} |\n| --- | --- | --- |")
    for name, rounds in figures.items():
        rates = [num * BATCH / one["cpu_s"] for one in rounds]
        print(f"| {name} | {spread(rates, 0)} | {spread(ratios(figures, baseline, name))} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser, "loader")
    parser.add_argument("--camvid", type=Path, default=Path("../shared/data/camvid"))
    parser.add_argument("--scribblesup", type=Path, default=Path("../shared/data/scribblesup_sample"))
    parser.add_argument("--batches", type=int, default=12, help="batches of 16 a measurement [%(default)s]")
    args = parser.parse_args()
    num, name = args.batches, "2007_000032"
    options = {"rounds": args.rounds, "threads": args.threads, "memory": False}

    dense: tuple[str, ...] = ("--dataset", "Dense", "--dataset_path", str(args.camvid), "--numclasses", "11")
    dense += ("--crop_size", "480")
    check_equal(dense)
    ways = {
        "opencv": partial(opencv, dense, num),
        "ours": partial(ours, dense, num),
        "ours, with colour": partial(ours, (*dense, *COLOUR), num),
        "torchvision": partial(torchvision, dense, num),
    }
    figures, _ = measure(ways, **options)
    report(figures, "opencv", num)
    print(f"ours over torchvision: {spread(ratios(figures, 'torchvision', 'ours'))}\n")

    with tempfile.TemporaryDirectory() as lists:
        Path(lists, "train.txt").write_text(f"{name}\n" * BATCH * num)
        recipe: tuple[str, ...] = ("--dataset_path", str(args.scribblesup), "--list_path", lists, "--crop_size", "465")
        stored = ("--distancemap_s", "distance_map", "--distancemap_c", "distance_pseudo")
        ways = {
            "ours, maps computed": partial(ours, recipe, num),
            "ours, maps stored": partial(ours, (*recipe, *stored), num),
        }
        recipe_figures, _ = measure(ways, **options)
    report(recipe_figures, "ours, maps stored", num)
    save(args.out, {"dense": figures, "recipe": recipe_figures})


if __name__ == "__main__":
    main()

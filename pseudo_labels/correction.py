"""Correct a model that was trained on strokes: for their shares of the classes, and for classes that they skip."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

LEAST_SKIPPED = 0.05  # of a class's pixels, to be named
ROUNDS = 3  # the factors hardly change after the third round


@dataclass(frozen=True)
class Correction:
    """Factors for a model's probabilities, (C,) float64; then each pixel's are scaled to sum to 1.

    share: share of a class in the pixels / its share in the strokes. People draw about equally long strokes on small
    and large objects, so a model that was trained on strokes predicts small classes too often. These factors give it
    the shares of the pixels (Saerens et al. 2002, eq. 2.4; logit adjustment, arXiv:2007.07314).
    unstroked: further factor in images where the class has no stroke: 0 if such images do not show the class, up to 1
    if strokes skip it in most of the images that show it.
    """

    share: np.ndarray
    unstroked: np.ndarray

    def weights(self, stroked: np.ndarray) -> np.ndarray:
        """Return the factors in an image, (C,) float64. stroked: classes with a stroke in it, (C,) bool."""
        return self.share * np.where(stroked | ~stroked.any(), 1.0, self.unstroked)

    def text(self, names: Sequence[str], stroke_pixels: np.ndarray) -> str:
        """Return the shares of the classes in strokes and pixels, and classes that strokes skip, for the terminal.

        names: of the classes, at least C. stroke_pixels: number of pixels of each class's strokes, (C,).
        """
        strokes = 100 * stroke_pixels / max(1, stroke_pixels.sum())
        factors = zip(names, strokes, self.share, strict=False)
        shares = [f"{name}: {own:.1f} -> {own * share:.1f}" for name, own, share in factors]
        parts = zip(names, self.unstroked, strict=False)
        skipped = [f"{name}: {100 * part:.0f}" for name, part in parts if part >= LEAST_SKIPPED]
        text = f"% of the strokes -> % of the pixels, as far as the model knows: {', '.join(shares)}"
        if skipped:
            text += f"\n% of a class's pixels that lie in images without a stroke of it: {', '.join(skipped)}"
        return text


def none(num_classes: int) -> Correction:
    """Return the correction of a model that did not learn from strokes: classes without a stroke are absent."""
    return Correction(np.ones(num_classes), np.zeros(num_classes))


def estimate(walk: Callable[[Correction], np.ndarray], stroked: np.ndarray, stroke_pixels: np.ndarray) -> Correction:
    """Return the correction of a model that was trained on strokes, found from its own labels.

    Each round labels N images with the last correction, and takes the shares of the classes in the result as those of
    the pixels: expectation maximization, as in Saerens et al. 2002. The first round lets all classes occur everywhere;
    the part of a class's area that it finds in images without its stroke is the factor `unstroked`.
    walk: returns the shares of the classes in each of the N images, (N, C). stroked: classes with a stroke in each of
    them, (N, C) bool. stroke_pixels: number of pixels of each class's strokes in all images, (C,).
    """
    found = Correction(np.ones(stroked.shape[1]), np.ones(stroked.shape[1]))
    unstroked = None
    for _ in range(ROUNDS):
        shares = walk(found)
        total = np.maximum(shares.sum(0), 1e-12)
        if unstroked is None:
            unstroked = (shares * ~stroked).sum(0) / total
        # A class without any stroke was not learned: its probability stays as it is.
        factors = total / total.sum() * stroke_pixels.sum() / np.maximum(stroke_pixels, 1)
        found = Correction(np.where(stroke_pixels > 0, factors, 1.0), unstroked)
    return found

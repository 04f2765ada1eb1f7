"""--class_weights balanced: a weight for each class from its share of the pixels."""

from collections.abc import Sequence

import numpy as np


def balanced_weights(histogram: Sequence[int]) -> np.ndarray:
    """Return class weights by ENet's bounded rule (arXiv:1606.02147): 1 / ln(1.02 + p), (num_classes,) float64.

    p is the class's share of the labelled pixels; p = 1 has weight 1.42, p = 0 50.5. histogram: pixels per class.
    """
    share = np.array(histogram) / max(sum(histogram), 1)
    return 1 / np.log(1.02 + share)

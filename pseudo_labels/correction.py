"""Correct a model that was trained on strokes for the strokes' shares of the classes."""

import numpy as np


def factors(pixels: np.ndarray, strokes: np.ndarray) -> np.ndarray:
    """Return factors for a model's probabilities, (C,) float64: sqrt(share of the pixels / share of the strokes).

    People draw about equally long strokes on small and large objects, so a model that was trained on strokes predicts
    small classes too often. By Bayes' rule, the ratio itself would give it the shares of the pixels (Saerens et al.
    2002, eq. 2.4; arXiv:2007.07314). But for strokes of equal length, the ratio made worse labels than its square root
    does (benchmarks/RESULTS.md).
    The factor of a class of less than 1 / C of the pixels is at most 1: strokes rarely label too little of a small
    class, and a larger factor would amplify its confusion with a large one. A class without strokes has factor 1,
    because the model did not learn it, and so has a class that is in no label, which 0 would remove everywhere.
    pixels: number of pixels of each class in labels that are made without factors, (C,). strokes: number of its pixels
    in all strokes, (C,); not all 0.
    """
    known = (strokes > 0) & (pixels > 0)
    ratios = np.where(known, pixels, 1) / np.where(known, strokes, 1) * strokes.sum() / max(pixels.sum(), 1)
    result = np.where(known, np.sqrt(ratios), 1.0)
    return np.where(pixels * len(pixels) < pixels.sum(), np.minimum(result, 1.0), result)

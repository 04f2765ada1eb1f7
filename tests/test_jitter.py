"""Random brightness, contrast and saturation, against a plain form."""

import numpy as np
import pytest

from data.transforms import LUMA, MEAN_COLOUR, ColourJitter

HALF = {"brightness": 0.5, "contrast": 0.5, "saturation": 0.5}


class Drawn:
    """A random generator that returns these values for ColourJitter."""

    def __init__(self, *factors: float):
        self.factors = factors

    def random(self) -> float:
        return 0.0

    def uniform(self, low: np.ndarray, high: np.ndarray) -> tuple[float, ...]:
        assert (low.tolist(), high.tolist()) == ([0.5, 0.5, 0.5, 0.0], [1.5, 1.5, 1.5, 0.0])
        return *self.factors, 0.0


def plain_jitter(image: np.ndarray, brightness: float, contrast: float, saturation: float) -> np.ndarray:
    """One change after the other, in float64, and rounded at the end."""
    values = image * brightness
    values = np.array(MEAN_COLOUR) + contrast * (values - MEAN_COLOUR)
    grey = (values @ LUMA)[..., None]
    return np.rint(grey + saturation * (values - grey)).clip(0, 255)


@pytest.mark.parametrize("factors", [(0.5, 1.5, 0.5), (1.5, 0.5, 1.5), (1.2, 1.1, 0.7), (1.0, 1.0, 1.0)])
def test_jitter_of_rgb(factors):
    image = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    before, inside = image.copy(), np.ones((20, 30), np.uint8)
    inside[:5] = 0
    changed = ColourJitter(**HALF)(image, inside, Drawn(*factors))
    expected = plain_jitter(image, *factors)
    # OpenCV computes with a few more bits than 8
    assert np.abs(changed[5:].astype(int) - expected[5:]).max() <= 1
    assert (changed[:5] == before[:5]).all()
    assert np.array_equal(image, before)


def test_a_fifth_of_the_images_is_not_changed():
    """Of 400, 80; 4 standard deviations, sqrt(400 * 0.2 * 0.8) = 8 each, are 32."""
    image, inside = np.full((1, 1, 3), 60, np.uint8), np.ones((1, 1), np.uint8)
    rng = np.random.default_rng(0)
    same = sum(ColourJitter(**HALF)(image, inside, rng) is image for _ in range(400))
    assert 48 <= same <= 112

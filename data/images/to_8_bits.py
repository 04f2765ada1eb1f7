"""Map the values of an image to 8 bits."""

import numpy as np

HAVE_8_BITS = {"uint8", "bool"}  # numpy's types


def map_to_8_bits(values: np.ndarray, limits: tuple[float, ...], nodata: float | None) -> np.ndarray:
    """Return one band (H, W) mapped to uint8 as ImageReader says. limits: LOW and HIGH; () if it has 8 bits."""
    if values.dtype == bool:
        values = values.astype(np.uint8) * np.uint8(255)
    if values.dtype == np.uint8:
        return np.ascontiguousarray(values)
    if values.dtype.kind in "iu" and values.dtype.itemsize <= 2:  # a table of all values takes less time
        least, most = np.iinfo(values.dtype).min, np.iinfo(values.dtype).max
        table = map_to_8_bits(np.arange(least, most + 1), limits, nodata)
        return table[values if least == 0 else values.astype(np.int32) - least]
    low, high = limits
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = np.rint((values.astype(np.float64) - low) / (high - low) * 255).clip(0, 255)
    return np.where(is_valid(values, nodata), scaled, 0).astype(np.uint8)


def is_valid(values: np.ndarray, nodata: float | None) -> np.ndarray:
    """Return where values are finite and not the value for "no data", as bool of their shape."""
    valid = np.isfinite(values)
    return valid if nodata is None else valid & (values != nodata)

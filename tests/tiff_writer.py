"""Write TIFF files of every kind with tifffile."""

from pathlib import Path

import numpy as np
import tifffile

LZW, DEFLATE = 5, 8


def write_tiff(
    path: Path,
    *pages: np.ndarray,
    order: str = "<",
    big: bool = False,
    planar: bool = False,
    tile: int = 0,
    rows: int = 5,
    compression: int = 1,
    predictor: int = 1,
    tags: dict[int, int] | None = None,
) -> Path:
    """Write arrays (H, W, C) as the pages of a TIFF file, in strips of `rows` rows or in square tiles.

    order: "<" or ">", of bytes. tags: values that replace those of the first page.
    """
    with tifffile.TiffWriter(path, byteorder=order, bigtiff=big) as file:
        for page in pages:
            values = page[..., 0] if page.shape[2] == 1 else page.transpose(2, 0, 1) if planar else page
            file.write(
                values,
                photometric="rgb" if page.shape[2] > 2 else "minisblack",
                planarconfig=None if page.shape[2] == 1 else "separate" if planar else "contig",
                tile=(tile, tile) if tile else None,
                rowsperstrip=None if tile else rows,
                compression=compression,
                predictor=predictor if predictor > 1 else None,
                extrasamples=[0] * (page.shape[2] - (3 if page.shape[2] > 2 else 1)) or None,
                extratags=[(274, 3, 1, 1, True)],
                subfiletype=(tags or {}).get(254, 0),
                metadata=None,
            )
    with tifffile.TiffFile(path, mode="r+b") as file:
        for number, value in (tags or {}).items():
            if tag := file.pages[0].tags.get(number):
                tag.overwrite([value] * tag.count)
    return path

"""Decode ordinary JPEG files by OpenCV, which is faster than PIL and gives the same pixels.

OpenCV fills what is missing in a truncated file with grey and turns some photos, so such files are left to PIL.
"""

import struct

import cv2
import numpy as np
from PIL import Image

START, FRAMES, SCAN, END = b"\xff\xd8", range(0xC0, 0xC3), 0xDA, b"\xff\xd9"  # ITU-T T.81, table B.1
EXIF, ADOBE = 0xE1, 0xEE  # application segments: the first may rotate, the second may mean other colours than YCbCr
TABLES = (0xC4, 0xDB, 0xDD, *range(0xE0, 0xF0), 0xFE)  # Huffman, quantization, restart interval, applications, comment


def decode_plain(data: bytes) -> np.ndarray | None:
    """Return the pixels of a whole, baseline or progressive JPEG file, (H, W, 3) uint8 RGB; of any other data, None.

    None also for a file with Exif, with Adobe's segment, or with more pixels than PIL takes without a warning.
    """
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) if _is_plain(data) else None
    return pixels if pixels is None else cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB, dst=pixels)


def _is_plain(data: bytes) -> bool:
    if not (data.startswith(START) and data.endswith(END)):
        return False
    position, has_frame = len(START), False
    while position + 10 <= len(data):
        prefix, marker, length = struct.unpack_from(">BBH", data, position)
        if marker == SCAN:
            return has_frame
        if prefix != 0xFF or marker in (EXIF, ADOBE) or marker not in (*FRAMES, *TABLES):
            return False
        if marker in FRAMES:
            precision, height, width, channels = struct.unpack_from(">BHHB", data, position + 4)
            too_large = Image.MAX_IMAGE_PIXELS is not None and height * width > Image.MAX_IMAGE_PIXELS
            if (precision, channels) != (8, 3) or height * width == 0 or too_large:
                return False
            has_frame = True
        position += 2 + length
    return False

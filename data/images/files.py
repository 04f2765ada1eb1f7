"""Open image files. No other module calls the decoders of PIL and OpenCV (tests/test_rooms.py)."""

import contextlib
import os
import re
import struct
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import ExifTags, Image, ImageOps, ImagePalette, TiffImagePlugin, UnidentifiedImageError

from support.errors import InputError, NotRGBError, UserError

# In order of preference; letter case does not matter.
IMAGE_SUFFIXES = (".jpg", ".png", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
LABEL_SUFFIXES = (".png", ".bmp", ".tif", ".tiff", ".webp")
# By content, whatever the suffix; MPO counts as JPEG. PIL would start another program for PostScript.
FORMATS = ("JPEG", "PNG", "BMP", "TIFF", "GIF", "WEBP")
# What the caller of opened() needs; its messages end with it.
IMAGE = "images must be 8-bit RGB: convert it, or train with --bands (for 8 bits) or --value_range LOW HIGH (for more)"
MASK = "save class numbers as one channel of 8 or 16 bits, or 8-bit colours"
VALUES = "replace it"  # any bits and channels
LOSSY = "{} compression changes label values: save the mask as PNG"
LOSSLESS = ("PNG", "BMP", "TIFF", "GIF")
LOSSLESS_TIFF = (1, 2, 3, 4, 5, 8, 32771, 32773, 32946, 34925, 50000)  # none, CCITT, LZW, Deflate, PackBits, LZMA, Zstd
# Exceptions that PIL and zlib raise on damaged files.
DAMAGED = (
    *(ArithmeticError, OSError, EOFError, LookupError, RuntimeError, SyntaxError, TypeError, ValueError),
    *(struct.error, zlib.error),
)
SUBFILE_TYPE, BITS, COMPRESSION, CHANNELS, SAMPLE_FORMAT = 254, 258, 259, 277, 339  # tags of TIFF
EXIF = ("exif", "xmp", "Raw profile type exif", "XML:com.adobe.xmp")  # where PIL keeps an orientation

# PIL's names for grey values in a file: 1 bit, 2, 4 or 8 bits; "I": 0 is white; "R": reversed order of bits.
_GREY = re.compile("([1L]);?([24]?)(I?)R?")
_STEP = {"2": 85, "4": 17}  # PIL multiplies values of 2 or 4 bits by this
_DAMAGE = re.compile("Corrupt JPEG data.*|Premature end.*")


@contextlib.contextmanager
def opened(path: Path, needed: str = IMAGE) -> Iterator[Any]:
    """Yield an image file, opened by PIL. Turn exceptions of PIL, here and in the `with` block, into an InputError.

    needed: IMAGE, MASK or VALUES. Raises InputError if the file is missing, not a regular file, or in none of FORMATS.
    Raises NotRGBError, unless VALUES are needed, if PIL leaves out channels or cuts them to 8 bits; and if an IMAGE has
    more than 8 bits a channel, signed values, or more than 4 channels.
    """
    TiffImagePlugin.logger.disabled = True  # it would print a line of its own for a file that is refused
    try:
        if not os.path.isfile(path):
            if os.path.exists(path):  # opening a pipe would wait for a writer
                raise InputError(f"{path}: not a regular file: replace it by an image")
            if os.path.islink(path):
                raise InputError(f"{path}: a link to a missing file, or to itself: remove it, or restore the file")
        with Image.open(path, formats=FORMATS) as image:
            if image.format == "TIFF":
                image.filename = ""  # else Pillow maps uncompressed pixels into memory, and forgets EXIF
            if image.format == "BMP":
                _restore_palette(image)
            if needed != VALUES and (problem := _unfit(image, needed)):
                raise NotRGBError(f"{path}: {problem}: {needed}")
            yield image
    except UserError:
        raise
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except Image.DecompressionBombError as error:
        raise InputError(f"{path}: too large ({error}): cut it into smaller images") from None
    except DAMAGED as error:
        if isinstance(error, UnidentifiedImageError) and (channels := _tiff_channels(path)):
            raise NotRGBError(f"{path}: {channels}: {needed}") from None
        problem = f"not a whole, readable image ({' '.join(str(error).split())})"
        raise InputError(f"{path}: {problem}: replace it") from None


def _restore_palette(image: Any) -> None:
    """Give an opened BMP file its palette back if Pillow takes indices for grey values of another number of bits.

    Pillow drops a grey palette and forgets the bits of an index: it reads a byte of black or white as eight pixels.
    """
    image.fp.seek(14)
    header = image.fp.read(16)
    bits = header[10 if header[0] == 12 else 14]  # 12: the length of a header of OS/2
    if image.mode in ("1", "L") and bits != (1 if image.mode == "1" else 8):
        greys = (0, 255) if image.mode == "1" else range(256)
        image._mode, image.palette = "P", ImagePalette.raw("RGB", np.repeat(np.array(greys, np.uint8), 3).tobytes())
        decoder, box, offset, args = image.tile[0]
        image.tile = [(decoder, box, offset, ("P" if bits == 8 else f"P;{bits}", *args[1:]))]


def num_channels(image: Any) -> int:
    """Return the number of channels in an opened file. A TIFF file may have more channels than PIL reads."""
    bands = len(image.getbands())
    return image.tag_v2.get(CHANNELS, bands) if image.format == "TIFF" else bands


def _unfit(image: Any, needed: str) -> str:
    """Return the channels or values of an opened file that PIL cannot read as an IMAGE or MASK, "" if it reads all.

    If channels are stored one after the other, PIL reads the first one as grey. It has no mode for 16-bit colours.
    Channels behind a palette's indices, or behind red, green and blue, do not belong to the picture.
    """
    channels, depth = num_channels(image), bits(image)
    is_part = channels > len(image.getbands()) and image.mode not in ("P", "RGB", "RGBA")
    if is_part or (channels > 1 and depth > 8):
        return f"{channels} channels of {depth} bits"
    if needed == MASK:
        return ""
    if channels > 4:
        return f"{channels} channels"
    if is_signed_8_bit(image):
        return "signed values"
    return f"more than 8 bits a channel (mode {image.mode})" if image.mode.startswith(("I", "F")) else ""


def bits(image: Any) -> int:
    """Return the bits of a value in an opened file whose pixels are not loaded; 8 for fewer, unless it is TIFF."""
    if image.format == "TIFF":
        return max(image.tag_v2.get(BITS, (1,)))
    return 16 if ";16" in str(image.tile[:1]) else 8


def is_tiff(path: Path) -> bool:
    """Return whether a regular file begins as TIFF or BigTIFF."""
    with contextlib.suppress(OSError):
        if os.path.isfile(path):  # opening a pipe would wait for a writer
            with path.open("rb") as file:
                return file.read(4) in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # by byte order
    return False


def _tiff_channels(path: Path) -> str:
    """Return what a TIFF file that PIL cannot open has, "" for one channel of 8 bits or another file."""
    with contextlib.suppress(*DAMAGED), path.open("rb") as file:
        head = file.read(8)
        if head[:4] == b"MM\0+":
            return "BigTIFF with the high byte first"
        tags = TiffImagePlugin.ImageFileDirectory_v2(head + file.read(8) if 43 in head[2:4] else head)  # 43: BigTIFF
        file.seek(tags.next)
        tags.load(file)
        channels, bits = tags.get(CHANNELS, 1), max(tags.get(BITS, (1,)))
        return f"{channels} channel(s) of {bits} bits" if channels > 1 or bits > 8 else ""
    return ""


def num_frames(path: Path, image: Any) -> int:
    """Return the number of frames of an opened file that are not smaller than the first one, which is read.

    Smaller frames are thumbnails and overviews; a TIFF file also marks these, and masks of transparency.
    """
    if not getattr(image, "is_animated", False) or image.format not in ("TIFF", "MPO"):
        return getattr(image, "n_frames", 1)
    count = 1
    with contextlib.suppress(*DAMAGED), Image.open(path, formats=FORMATS) as other:
        for number in range(1, 1000):
            other.seek(number)
            is_part = image.format == "TIFF" and other.tag_v2.get(SUBFILE_TYPE, 0) & 5  # type: ignore[attr-defined]
            count += not is_part and other.width >= image.width and other.height >= image.height
    return count


def lossy_codec(path: Path, image: Any) -> str:
    """Return the name of an opened file's codec if it can change values, "" if it cannot."""
    if image.format == "TIFF" and image.tag_v2.get(COMPRESSION, 1) not in LOSSLESS_TIFF:
        return f"{image.info.get('compression', 'unknown')} (in TIFF)"
    if image.format == "WEBP":
        return "" if _is_lossless_webp(path) else "lossy WebP"
    return "" if image.format in LOSSLESS else "JPEG"


def _is_lossless_webp(path: Path) -> bool:
    """Return True if the pixels of a WebP are in a chunk of VP8L, the lossless codec, instead of VP8.

    The file is RIFF: 12 bytes, then chunks: type, length, data of an even number of bytes (RFC 9649).
    """
    with path.open("rb") as file:
        position = 12
        while file.seek(position) and len(head := file.read(8)) == 8:
            kind, length = struct.unpack("<4sI", head)
            if kind in (b"VP8 ", b"VP8L"):
                return kind == b"VP8L"
            position += 8 + (16 if kind == b"ANMF" else length + length % 2)  # a frame has chunks of its own
    return False


def is_signed_8_bit(image: Any) -> bool:
    """Return whether an opened TIFF file has signed integers of 8 bits, which PIL reads as unsigned: -1 as 255."""
    return image.mode == "L" and image.format == "TIFF" and 2 in image.tag_v2.get(SAMPLE_FORMAT, ())


def check_mask(path: Path, image: Any, *, lossless: bool = True) -> None:
    """Raise InputError if an opened mask has several frames or, if `lossless`, a codec for photos."""
    if lossless and (codec := lossy_codec(path, image)):
        raise InputError(f"{path}: {LOSSY.format(codec)}")
    if (count := num_frames(path, image)) > 1:
        raise InputError(f"{path}: has {count} frames, of which one would be read: save a mask as one image")


def label_values(image: Any) -> tuple[np.ndarray, str]:
    """Return the values of an opened label as its file stores them, upright, and its mode: RGB of greys alone is "L".

    The values are (H, W) or (H, W, channels), integers or floats. PIL takes grey values for brightness: it stretches
    few bits to 0..255 and, where 0 is white, inverts them.
    """
    args = image.tile[0][3] if image.tile else ""  # loading the pixels empties it
    match = _GREY.fullmatch(args if isinstance(args, str) else str(args[0]))
    # Turning the image upright drops its tags.
    mode, channels, is_signed = image.mode, num_channels(image), is_signed_8_bit(image)
    turn_upright(image)
    values = np.array(image).view(np.int8).astype(np.int16) if is_signed else np.array(image)
    if values.dtype != np.uint8:  # 1 bit, or 16 of the other byte order
        values = values.astype(np.uint8 if values.dtype == bool else values.dtype.newbyteorder("="))
    if match and mode in ("1", "L"):
        values = (1 if match[1] == "1" else 255) - values if match[3] else values
        values = values // _STEP[match[2]] if match[2] else values
    if mode == "RGB" and channels == 3 and (values == values[..., :1]).all():
        return values[..., 0].copy(), "L"  # lossless WebP and some BMP files have no grey mode
    return values, mode


def turn_upright(image: Any) -> None:
    """Turn an opened image, a mask or a map, as its EXIF orientation says."""
    image.load()  # a PNG file may have EXIF behind the pixels
    if image.format == "TIFF" or not image.info.keys().isdisjoint(EXIF):  # to look there takes time
        ImageOps.exif_transpose(image, in_place=True)


def orientation(image: Any) -> int:
    """Return the EXIF orientation of an image that PIL has opened by its path; 1: upright."""
    if image.format == "PNG" and not _png_has_exif(Path(image.filename)):
        return 1  # PIL would decode all pixels to look for Exif behind them
    turn = image.getexif().get(ExifTags.Base.Orientation, 1)
    return turn if turn in range(2, 9) else 1


def _png_has_exif(path: Path) -> bool:
    """Return True if a PNG file has a chunk in which PIL looks for the orientation: Exif or XMP.

    The file is a signature of 8 bytes and chunks: length, type, data, CRC of 4 bytes (ISO/IEC 15948, section 5.3).
    """
    with path.open("rb") as file:
        position = 8
        while file.seek(position) and len(header := file.read(40)) >= 8:
            length, kind = struct.unpack_from(">I4s", header)
            if kind == b"eXIf" or header[8:].startswith((b"Raw profile type exif\0", b"XML:com.adobe.xmp\0")):
                return True
            position += 12 + length
    return False


def decode_bytes(data: bytes, flags: int) -> np.ndarray | None:
    """Return cv2.imdecode() of the bytes of an image; None if it cannot be decoded."""
    return cv2.imdecode(np.frombuffer(data, np.uint8), flags) if data else None


def jpeg_damage(path: Path) -> str:
    """Return libjpeg's message about damaged data in a JPEG file; "" without one, or for a file of another format.

    A decoder continues after such data, with wrong colours. PIL drops libjpeg's messages. OpenCV lets libjpeg write
    them to the standard error, so this function redirects that to a file.
    """
    data = path.read_bytes()
    if not data.startswith(b"\xff\xd8") or sys.stderr is None:  # some services close the standard error
        return ""
    saved = os.dup(2)
    sys.stderr.flush()
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            decode_bytes(data, cv2.IMREAD_REDUCED_GRAYSCALE_8)  # reads all data, but computes few pixels
        finally:
            os.dup2(saved, 2)
            os.close(saved)
        file.seek(0)
        match = _DAMAGE.search(file.read().decode("utf-8", "replace"))
    return match[0].strip() if match else ""

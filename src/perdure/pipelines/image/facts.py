"""What an image is, found without any service: format, size, colours, camera, and a hash that like images share."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from perdure.core.frozen import frozen
from perdure.pipelines.image import colours, exif, pixels
from perdure.pipelines.image.colours import Colour
from perdure.pipelines.image.opening import Opened, open_image

Orientation = Literal["landscape", "portrait", "square"]

SAMPLE_SIDE = 256  # colours and hash need no more
_HASH_SIDE = 8
_ANIMATED = {"GIF", "PNG", "WEBP", "AVIF"}  # frames of the others are pages
_DEPTHS = {"1": 1, "I;16": 16, "I;16B": 16, "I;16L": 16, "I": 32, "F": 32}
_BITS_PER_SAMPLE = 258
_SWAPPED = {5, 6, 7, 8}


@frozen
class Facts:
    """An image in short. Width and height are of the upright image; `mode` is Pillow's word for how it is stored."""

    media_type: str
    format: str
    size_bytes: int
    width: int
    height: int
    orientation: Orientation
    mode: str
    bit_depth: int
    frames: int  # of an animation, or pages
    animated: bool
    transparent: bool
    icc: bool
    hash: str  # 64 bits in hexadecimal, see `distance`
    dominant: tuple[Colour, ...]
    palette: tuple[Colour, ...]
    camera: str | None = None
    captured_at: str | None = None
    exif: dict[str, str | int | float] = field(default_factory=dict)


def facts(source: Path | str | bytes, private: bool = True, pixels_max: int | None = None) -> Facts:
    """All that can be told of an image here. `private` leaves place, serial numbers, owner, author and comments out.

    Permanent says why an image cannot be read, see `open_image`.
    """
    with open_image(source, pixels_max) as opened:
        mode, depth = opened.image.mode, _bit_depth(opened)
        picture = pixels.decode(opened, SAMPLE_SIDE)
        image = opened.image
        width, height = opened.size
        if pixels.orientation(image) in _SWAPPED:
            width, height = height, width
        frames = _frames(opened)
        found = exif.fields(image, private)
        palette = colours.palette(picture)
        return Facts(
            media_type=opened.media_type,
            format=opened.format,
            size_bytes=opened.size_bytes,
            width=width,
            height=height,
            orientation=_orientation(width, height),
            mode=mode,
            bit_depth=depth,
            frames=frames,
            animated=frames > 1 and opened.format in _ANIMATED,
            transparent=picture.mode == "RGBA",
            icc=bool(image.info.get("icc_profile")),
            hash=_hash(picture),
            dominant=colours.dominant(palette),
            palette=palette,
            camera=exif.camera(found),
            captured_at=exif.captured_at(found),
            exif=found,
        )


def distance(one: str, other: str) -> int:
    """In how many of 64 bits two hashes differ: up to about 6 it is the same picture, from about 16 another one."""
    return (int(one, 16) ^ int(other, 16)).bit_count()


def _hash(picture: Image.Image) -> str:
    """Whether each of 8 x 8 places is brighter than the one to its right. Whole numbers all the way."""
    grey = pixels.over_white(picture).convert("L")
    small = grey.resize((_HASH_SIDE + 1, _HASH_SIDE), Image.Resampling.BOX)
    values = np.asarray(small, dtype=np.int16)
    return np.packbits(values[:, :-1] > values[:, 1:]).tobytes().hex()


def _orientation(width: int, height: int) -> Orientation:
    if width == height:
        return "square"
    return "landscape" if width > height else "portrait"


def _bit_depth(opened: Opened) -> int:
    """Bits per channel in the file; Pillow decodes most to 8."""
    image = opened.image
    if opened.format == "PNG":
        return _head(opened, 25)[-1]
    if opened.format == "TIFF":
        stored = getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, (8,))
        return max((int(bits) for bits in stored), default=8)
    if opened.format == "HEIF":
        return int(image.info.get("bit_depth", 8))
    if opened.format == "AVIF":
        return _av1_depth(_head(opened, 4096))
    return _DEPTHS.get(image.mode, 8)


def _av1_depth(head: bytes) -> int:
    at = head.find(b"av1C")
    flags = head[at + 6] if 0 <= at < len(head) - 6 else 0
    return (12 if flags & 0x20 else 10) if flags & 0x40 else 8


def _head(opened: Opened, count: int) -> bytes:
    was = opened.file.tell()
    opened.file.seek(0)
    head = opened.file.read(count)
    opened.file.seek(was)
    return head


def _frames(opened: Opened) -> int:
    """How many there are; 1 if the rest cannot be counted."""
    if opened.format == "JPEG":  # what follows the picture there is a preview or a map of its lights
        return 1
    try:
        return int(getattr(opened.image, "n_frames", 1))
    except Exception:  # the first one was decoded all the same
        return 1

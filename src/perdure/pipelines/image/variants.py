"""Smaller copies of an image to show: thumbnail, medium and large, in WebP and AVIF.

The image is decoded once, and each size is made from the next larger one. The same input gives the same bytes with the
same version of the libraries, on any machine.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from perdure.core.frozen import frozen
from perdure.pipelines.image import pixels
from perdure.pipelines.image.opening import open_image

#: The longest side, the largest first. No image is made larger than it is.
SIDES = {"large": 2048, "medium": 1024, "thumbnail": 256}
#: AVIF: the threads and the division into tiles change its bytes, so neither is left to the machine.
FORMATS: dict[str, dict[str, Any]] = {
    "webp": {"quality": 80, "method": 4},
    "avif": {"quality": 60, "speed": 6, "max_threads": 4, "autotiling": False},
}
PREVIEW_QUALITY = 85


@frozen
class Variant:
    """A copy of an image: sRGB, upright, without metadata. (`name`, `format`) is its key."""

    name: str
    format: str
    width: int
    height: int
    content: bytes

    @property
    def key(self) -> str:
        """The same for every run: what is stored under it is overwritten, never doubled."""
        return f"{self.name}.{self.format}"

    @property
    def media_type(self) -> str:
        return f"image/{self.format}"


def variants(source: Path | str | bytes, pixels_max: int | None = None) -> Iterator[Variant]:
    """All six, the largest first; of an animation the first frame. Permanent as `open_image`."""
    with open_image(source, pixels_max) as opened:
        picture = pixels.decode(opened, max(SIDES.values()))
    encoded: dict[str, bytes] = {}
    for name, side in SIDES.items():
        size = pixels.fit(picture.size, side)
        if size != picture.size:
            picture = picture.resize(size, Image.Resampling.LANCZOS)
            encoded.clear()
        for format_ in FORMATS:
            if format_ not in encoded:
                encoded[format_] = _encode(picture, format_)
            yield Variant(name, format_, *picture.size, encoded[format_])


def preview(source: Path | str | bytes, pixels_max: int | None = None) -> bytes:
    """The medium size as JPEG, on white: what a vision service is shown."""
    with open_image(source, pixels_max) as opened:
        picture = pixels.over_white(pixels.decode(opened, SIDES["medium"]))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=PREVIEW_QUALITY)
    return file.getvalue()


def _encode(picture: Image.Image, format_: str) -> bytes:
    file = io.BytesIO()
    picture.save(file, format_.upper(), **FORMATS[format_])
    return file.getvalue()

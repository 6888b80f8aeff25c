"""Opens images that somebody sent: known formats only, their size checked before anything is decoded.

Whatever is wrong with an image raises Permanent with a code that says so; half an image is never given. Called by
`facts` and `variants`.
"""

from __future__ import annotations

import errno
import io
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from PIL import Image, ImageFile

from perdure.errors import Permanent
from perdure.pipelines.extract.sniff import BINARY, HEAD_BYTES, sniff
from perdure.settings import Settings

#: What is opened; Pillow knows many more, some of which start other programs (EPS).
MEDIA_TYPES = {
    "JPEG": "image/jpeg", "MPO": "image/jpeg", "PNG": "image/png", "GIF": "image/gif", "WEBP": "image/webp",
    "AVIF": "image/avif", "HEIF": "image/heic", "TIFF": "image/tiff", "BMP": "image/bmp", "JPEG2000": "image/jp2",
    "PPM": "image/x-portable-anymap",
}  # fmt: skip
ROWS_MAX = 5_000_000  # each costs memory and time of its own, however short it is
_TAIL_BYTES = 16
_ENDS = {"image/jpeg": b"\xff\xd9", "image/png": b"IEND", "image/gif": b";"}
_BOXED = {"image/avif", "image/heic", "image/jp2"}
_WITH_PIXELS = {b"mdat", b"jp2c"}
_BARE_JP2 = b"\xff\x4f\xff\x51"
_UNPACKS = (
    "decompressed data too large",
    "too much memory used",
)  # text and profiles in a PNG, as Pillow says
_CUT = ("truncated", "end of file", "eof", "only got", "not enough image data")


@dataclass(slots=True)
class Opened:
    """An image whose header is read and whose pixels are not. `size` is as stored, before it is turned upright."""

    image: ImageFile.ImageFile
    file: IO[bytes]
    format: str
    media_type: str
    size: tuple[int, int]
    size_bytes: int
    pixels_max: int

    def load(self) -> None:
        """Decode it, all of it or not at all."""
        with guarded(self.file):
            self.image.load()
        check_size(self.image.size, self.pixels_max)  # some learn their size only now


@contextmanager
def open_image(source: Path | str | bytes, pixels_max: int | None = None) -> Iterator[Opened]:
    """The image, ready to be decoded; `pixels_max` is PERDURE_IMAGE_PIXELS_MAX if not given.

    Permanent: image_empty, image_bomb, image_truncated, image_corrupt, type_mismatch, type_unsupported, heif_needed.
    """
    limit = pixels_max or Settings().image_pixels_max
    if Image.MAX_IMAGE_PIXELS is not None and limit > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = limit  # ours is checked below; Pillow's would refuse or warn before it
    with io.BytesIO(source) if isinstance(source, bytes) else Path(source).open("rb") as file:
        length = file.seek(0, io.SEEK_END)
        if not length:
            raise Permanent("image_empty", "this image has no content")
        file.seek(0)
        formats = _formats()
        with guarded(file):
            image = Image.open(file, formats=formats)
        try:
            check_size(image.size, limit)
            format_ = image.format or ""
            name = "JPEG" if format_ == "MPO" else format_
            yield Opened(image, file, name, MEDIA_TYPES[format_], image.size, length, limit)
        finally:
            image.close()


def check_size(size: tuple[int, int], pixels_max: int) -> None:
    """Permanent(image_bomb) if it has more pixels or rows than allowed, whatever its bytes."""
    width, height = size
    if width * height > pixels_max or height > ROWS_MAX:
        raise Permanent(
            "image_bomb", f"{width} x {height} pixels, at most {pixels_max} are decoded, and {ROWS_MAX} rows"
        )


@contextmanager
def guarded(file: IO[bytes]) -> Iterator[None]:
    """Around what Pillow does: its many errors become Permanent. The disk's errors and lack of memory stay."""
    try:
        yield
    except Image.DecompressionBombError as error:
        message = "more pixels than PERDURE_IMAGE_PIXELS_MAX allows are announced"
        raise Permanent("image_bomb", message) from error
    except MemoryError:
        raise
    except Exception as error:
        # EINVAL: the image names a place that no file can have
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise _refusal(error, file) from error


def heif_installed() -> bool:
    """Whether HEIC can be opened here."""
    return find_spec("pillow_heif") is not None


def _formats() -> list[str]:
    formats = [name for name in MEDIA_TYPES if name not in ("HEIF", "MPO")]  # JPEG finds out about MPO
    if heif_installed():
        import pillow_heif

        pillow_heif.register_heif_opener(thumbnails=False)
        formats.append("HEIF")
    return formats


def _refusal(error: Exception, file: IO[bytes]) -> Permanent:
    """Why this file could not be opened or decoded."""
    file.seek(0)
    head = file.read(HEAD_BYTES)
    kind = _kind(head)
    if kind == "image/heic" and not heif_installed():
        return Permanent(
            "heif_needed", "this is a HEIC image; pip install 'perdure[images]' to read it, then requeue"
        )
    if kind == "image/svg+xml":
        return Permanent("type_unsupported", "SVG is drawn by a program; hand in what it draws, as PNG")
    if kind == BINARY:
        return Permanent("type_unsupported", "this is no kind of image that is known here")
    if not kind.startswith("image/"):
        return Permanent("type_mismatch", f"said to be an image, but the content is {kind}")
    told = " ".join(str(error).split())[:200]
    if told.lower().startswith(_UNPACKS):
        return Permanent(
            "image_bomb", f"this {kind} holds text or a profile that unpacks without end ({told})"
        )
    if any(word in told.lower() for word in _CUT) or _is_cut(file, head, kind):
        return Permanent("image_truncated", f"this {kind} was cut off; fetch it again ({told})")
    return Permanent("image_corrupt", f"this {kind} is damaged ({told})")


def _kind(head: bytes) -> str:
    """As `sniff` says, and SVG."""
    kind = sniff(head)
    if b"<svg" in head[:4096] and not kind.startswith("image/"):
        return "image/svg+xml"
    return kind


def _is_cut(file: IO[bytes], head: bytes, kind: str) -> bool:
    """Whether a file that cannot be read ends before it should, by its own word."""
    length = file.seek(0, io.SEEK_END)
    if kind in _BOXED and not head.startswith(_BARE_JP2):
        return _boxes_are_cut(file, length)
    if kind == "image/webp":
        return int.from_bytes(head[4:8], "little") + 8 > length
    if kind == "image/bmp":
        return int.from_bytes(head[2:6], "little") > length
    if kind == "image/tiff":
        order = "<" if head.startswith(b"II") else ">"
        return _directory_end(file, length, order, large=b"+" in head[2:4]) > length
    file.seek(max(0, length - _TAIL_BYTES))
    return kind in _ENDS and _ENDS[kind] not in file.read(_TAIL_BYTES)


def _directory_end(file: IO[bytes], length: int, order: str, *, large: bool) -> int:
    """Where the first directory of a TIFF says that it ends; of a BigTIFF if `large`."""
    start, offset, count, entry = (8, "Q", "Q", 20) if large else (4, "I", "H", 12)
    at = _number(file, start, order + offset)
    entries = _number(file, at, order + count) if at < length else 0
    return at + struct.calcsize(order + count) + entry * entries + struct.calcsize(order + offset)


def _number(file: IO[bytes], at: int, form: str) -> int:
    size = struct.calcsize(form)
    file.seek(at)
    (found,) = struct.unpack(form, file.read(size).ljust(size, b"\xff"))
    return int(found)


def _boxes_are_cut(file: IO[bytes], length: int) -> bool:
    """Whether the boxes of an ISO file go on past its end, or the one with the pixels is missing."""
    at, names = 0, set()
    while at < length:
        file.seek(at)
        size, name, large = struct.unpack(">I4sQ", file.read(16).ljust(16, b"\0"))
        names.add(name)
        if size == 0:  # to the end, wherever that is
            break
        at += large if size == 1 else max(size, 8)
    return at > length or not names & _WITH_PIXELS

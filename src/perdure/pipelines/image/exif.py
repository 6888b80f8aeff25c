"""What a camera wrote beside the picture: some fields by name, and private ones only where they are asked for."""

from __future__ import annotations

import math
import re
from datetime import datetime
from typing import Any

from PIL import ExifTags, Image

from perdure.pipelines.extract.part import clean

TEXT_CHARS_MAX = 200

#: Field names as EXIF has them. The second table is left out unless it is asked for.
PUBLIC = (
    "Make", "Model", "LensMake", "LensModel", "Software", "DateTime", "DateTimeOriginal", "OffsetTimeOriginal",
    "ExposureTime", "FNumber", "ISOSpeedRatings", "FocalLength", "FocalLengthIn35mmFilm", "ExposureBiasValue",
    "ExposureProgram", "MeteringMode", "WhiteBalance", "Flash",
)  # fmt: skip
PRIVATE = (
    "BodySerialNumber", "LensSerialNumber", "CameraOwnerName", "Artist", "Copyright", "ImageDescription", "UserComment",
    "XPAuthor", "XPComment", "XPTitle", "XPSubject", "XPKeywords",
)  # fmt: skip

Fields = dict[str, str | int | float]

_OFFSET = re.compile(r"[+-][01]\d:[0-5]\d")
_NAMES = {tag.value: tag.name for tag in ExifTags.Base}
_COMMENT_CODES = {b"ASCII\0\0\0": "ascii", b"UNICODE\0": "utf-16", b"\0" * 8: "utf-8"}


def fields(image: Image.Image, private: bool = True) -> Fields:
    """The fields that are there and make sense. `private`: without place, serial numbers, owner, author, comments."""
    try:
        exif = image.getexif()
        found = {**dict(exif), **exif.get_ifd(ExifTags.IFD.Exif)}
        place = {} if private else exif.get_ifd(ExifTags.IFD.GPSInfo)
    except Exception:  # broken EXIF is no EXIF
        return {}
    wanted = {*PUBLIC} if private else {*PUBLIC, *PRIVATE}
    kept: Fields = {}
    for tag, value in sorted(found.items()):
        name = _NAMES.get(tag, "")
        if name in wanted and (plain := _plain(value, wide=name.startswith("XP"))) is not None:
            kept[name] = plain
    return {**kept, **_position(place)}


def captured_at(found: Fields) -> str | None:
    """When the picture was taken, as ISO 8601; without an offset where the camera did not write one."""
    written = str(found.get("DateTimeOriginal") or found.get("DateTime") or "")
    try:
        taken = datetime.strptime(written[:19], "%Y:%m:%d %H:%M:%S").isoformat()
    except ValueError:
        return None
    offset = str(found.get("OffsetTimeOriginal", "")) if "DateTimeOriginal" in found else ""
    return taken + offset if _OFFSET.fullmatch(offset) else taken


def camera(found: Fields) -> str | None:
    """Maker and model, the maker once."""
    make, model = str(found.get("Make", "")), str(found.get("Model", ""))
    if model.lower().startswith(make.lower()):
        make = ""
    return f"{make} {model}".strip() or None


def _plain(value: Any, wide: bool = False) -> str | int | float | None:
    """A short text or a finite number, else None."""
    if isinstance(value, tuple) and len(value) == 1:
        value = value[0]
    if isinstance(value, bytes):
        value = _decoded(value, wide)
    if isinstance(value, str):
        return clean(value.partition("\0")[0]).strip()[:TEXT_CHARS_MAX] or None
    if isinstance(value, int):
        return int(value) if abs(value) < 1 << 53 else None
    return _number(value)


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        return None
    return round(number, 6) if math.isfinite(number) else None


def _decoded(value: bytes, wide: bool) -> str:
    if wide:
        return value.decode("utf-16-le", "replace")
    code = _COMMENT_CODES.get(value[:8])
    return value[8:].decode(code, "replace") if code else value.decode("utf-8", "replace")


def _position(place: dict[int, Any]) -> Fields:
    """Degrees north and east."""
    found: Fields = {}
    for name, at, negative in (("Latitude", 1, "S"), ("Longitude", 3, "W")):
        parts = place.get(at + 1)
        if isinstance(parts, tuple) and len(parts) == 3:
            numbers = [_number(part) for part in parts]
            if None not in numbers:
                degrees = sum(number / 60**n for n, number in enumerate(numbers) if number is not None)
                found[name] = round(-degrees if str(place.get(at)).startswith(negative) else degrees, 6)
    return found

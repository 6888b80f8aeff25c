"""The pixels of an image as people see it: upright, sRGB, 8 bits, RGB or RGBA, and no larger than needed.

It is made smaller first and converted then, because that is less work and looks the same. Called by `facts` and
`variants`.
"""

from __future__ import annotations

import io
from functools import cache

import numpy as np
from PIL import Image, ImageChops, ImageCms, ImageFile, JpegImagePlugin

from perdure.pipelines.image.opening import Opened

#: JPEG may be decoded to a half, quarter or eighth as long as this many pixels remain for each one that is wanted.
GAP = 2
ICC_BYTES_MAX = 4 << 20  # larger ones are not believed; those for print have up to 3 MB
_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # fmt: skip
_SCALABLE = {"L", "LA", "RGB", "RGBA", "CMYK", "LAB"}


def decode(opened: Opened, side_max: int) -> Image.Image:
    """The picture, its longest side at most `side_max`; of several frames or pages the first.

    RGBA if something shines through, else RGB. It carries nothing of the file's metadata.
    """
    image = opened.image
    if isinstance(image, JpegImagePlugin.JpegImageFile):
        width, height = fit(image.size, side_max * GAP)
        image.draft(None, (width, height))
    opened.load()
    small = _scalable(image)
    size = fit(small.size, side_max)
    if size != small.size:
        small = small.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)
    if small.mode == "CMYK" and opened.format == "JPEG" and "adobe" not in image.info:
        small = ImageChops.invert(small)  # Pillow takes all for Adobe's, which store it inverted
    picture = _srgb(small, image.info.get("icc_profile"))
    turn = _TURNS.get(orientation(image))
    if turn is not None:
        picture = picture.transpose(turn)
    picture.info = {}
    return picture


def fit(size: tuple[int, int], side_max: int) -> tuple[int, int]:
    """The size with its longest side at most `side_max`; never larger than it is, and no side is 0."""
    longest = max(size)
    if longest <= side_max:
        return size
    width, height = (max(1, (2 * side * side_max + longest) // (2 * longest)) for side in size)
    return width, height


def orientation(image: ImageFile.ImageFile) -> int:
    """How a loaded image has to be turned, as EXIF counts it; 1 (not at all) if that is broken."""
    try:
        found = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # whatever is wrong with EXIF, the picture is there
        return 1
    return found if found in _TURNS else 1


def over_white(picture: Image.Image) -> Image.Image:
    """The picture in RGB, on white where something shone through."""
    if picture.mode == "RGB":
        return picture
    white = Image.new("RGBA", picture.size, "white")
    return Image.alpha_composite(white, picture).convert("RGB")


def _scalable(image: Image.Image) -> Image.Image:
    """In 8 bits and in a mode that can be made smaller."""
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        image = Image.fromarray(_stretched(np.asarray(image)))
    if image.mode in _SCALABLE and "transparency" not in image.info:
        return image
    if image.has_transparency_data:
        return image.convert("RGBA")
    return image.convert("L" if image.mode == "1" else "RGB")


def _stretched(values: np.ndarray) -> np.ndarray:
    """Numbers of unknown range in 8 bits: a usual range is taken for what it is, any other is scaled to fit."""
    known = np.nan_to_num(values.astype(np.float32), copy=False, nan=0.0, posinf=0.0, neginf=0.0)
    low, high = float(known.min()), float(known.max())
    tops = (1.0, 255.0, 65535.0) if values.dtype.kind == "f" else (255.0, 65535.0)
    top = next((top for top in tops if low >= 0 and high <= top), None)
    if top is not None:
        low, high = 0.0, top
    scale = 255.0 / (high - low) if high > low else 0.0
    return ((known - low) * scale).round().astype(np.uint8)


def _srgb(image: Image.Image, icc: bytes | None) -> Image.Image:
    """In RGB or RGBA, by its ICC profile where there is one that fits."""
    alpha = image.getchannel("A") if image.mode in ("LA", "RGBA") else None
    base = image.convert(image.mode[:-1]) if alpha is not None else image
    picture = _by_profile(base, icc) or base.convert("RGB")
    if alpha is not None and alpha.getextrema() != (255, 255):
        picture.putalpha(alpha)
    return picture


def _by_profile(image: Image.Image, icc: bytes | None) -> Image.Image | None:
    try:
        if image.mode == "LAB":
            profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB"))
        elif icc and len(icc) <= ICC_BYTES_MAX:
            profile = ImageCms.ImageCmsProfile(io.BytesIO(icc))
        else:
            return None
        return ImageCms.profileToProfile(
            image, profile, _srgb_profile(), ImageCms.Intent.RELATIVE_COLORIMETRIC, "RGB",
            flags=ImageCms.Flags.BLACKPOINTCOMPENSATION,
        )  # fmt: skip
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):  # broken, or for another kind of image
        return None


@cache
def _srgb_profile() -> ImageCms.ImageCmsProfile:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))

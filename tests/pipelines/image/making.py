"""Images made for the tests, in all the ways they are stored."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pillow_heif
from PIL import Image, ImageCms, ImageDraw

pillow_heif.register_heif_opener()

#: Four corners that tell how an image is turned: red, green / blue, yellow.
RED, GREEN, BLUE, YELLOW = (220, 30, 30), (20, 160, 40), (30, 60, 220), (240, 220, 40)

STORED: dict[str, tuple[str, dict[str, Any]]] = {
    "jpeg": ("JPEG", {"quality": 95}),
    "progressive": ("JPEG", {"progressive": True}),
    "png": ("PNG", {}),
    "gif": ("GIF", {}),
    "webp": ("WEBP", {}),
    "lossless": ("WEBP", {"lossless": True}),
    "avif": ("AVIF", {}),
    "heif": ("HEIF", {}),
    "tiff": ("TIFF", {}),
    "lzw": ("TIFF", {"compression": "tiff_lzw"}),
    "bigtiff": ("TIFF", {"big_tiff": True}),
    "bmp": ("BMP", {}),
    "jp2": ("JPEG2000", {}),
    "ppm": ("PPM", {}),
}


def corners(width: int = 60, height: int = 40, mode: str = "RGB") -> Image.Image:
    image = Image.new("RGB", (width, height))
    draw = ImageDraw.Draw(image)
    half, middle = width // 2, height // 2
    draw.rectangle((0, 0, half - 1, middle - 1), RED)
    draw.rectangle((half, 0, width, middle - 1), GREEN)
    draw.rectangle((0, middle, half - 1, height), BLUE)
    draw.rectangle((half, middle, width, height), YELLOW)
    return image.convert(mode)


def photo(width: int = 640, height: int = 480, seed: int = 1) -> Image.Image:
    """Something with soft shapes and some noise, like a photograph."""
    rng = np.random.default_rng(seed)
    soft = Image.fromarray(rng.integers(0, 255, (6, 8, 3), dtype=np.uint8)).resize((width, height), 3)
    noise = rng.integers(-8, 8, (height, width, 3))
    return Image.fromarray(np.clip(np.asarray(soft, dtype=np.int16) + noise, 0, 255).astype(np.uint8))


def stored(image: Image.Image, format_: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format_, **options)
    return file.getvalue()


def as_stored(image: Image.Image, name: str) -> bytes:
    format_, options = STORED[name]
    return stored(image, format_, **options)


def frames(count: int) -> list[Image.Image]:
    return [Image.new("RGB", (40, 30), (n * 50 % 256, 200 - n * 40 % 200, 90)) for n in range(count)]


def chunk(kind: bytes, content: bytes) -> bytes:
    """A chunk of a PNG."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, depth: int, colour: int, rows: bytes) -> bytes:
    """A PNG that Pillow would not write: 16 bits a channel, or a size that is a lie."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def exif(**fields: Any) -> Image.Exif:
    """EXIF with these fields by name; those of the camera stand in an IFD of their own, as cameras write them."""
    from PIL import ExifTags

    made = Image.Exif()
    for name, value in fields.items():
        if name == "GPS":
            made.get_ifd(ExifTags.IFD.GPSInfo).update(value)
        else:
            tag = ExifTags.Base[name].value
            of_camera = tag > 0x8298 and not name.startswith("XP")
            (made.get_ifd(ExifTags.IFD.Exif) if of_camera else made)[tag] = value
    read = Image.Exif()  # only what was read has all its parts where every format looks for them
    read.load(made.tobytes())
    return read


def swapped_profile() -> bytes:
    """An ICC profile like sRGB, but what it calls red is green and the other way round."""
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    return profile.replace(b"rXYZ", b"tXYZ").replace(b"gXYZ", b"rXYZ").replace(b"tXYZ", b"gXYZ")


def ink_profile() -> bytes:
    """An ICC profile for CMYK in which every ink mixture is the same light blue, so that nobody misses its use."""
    tables = bytes(range(256))
    lightblue = bytes([200, 110, 100])  # L*a*b* in 8 bits
    lut = b"mft1" + bytes(4) + bytes([4, 3, 2, 0]) + struct.pack(">9i", 65536, 0, 0, 0, 65536, 0, 0, 0, 65536)
    lut += tables * 4 + lightblue * 16 + tables * 3
    white = b"XYZ " + bytes(4) + struct.pack(">3i", 63190, 65536, 54061)
    text = b"text" + bytes(4) + b"ink\0"
    tags, content, at = b"", b"", 128 + 4 + 4 * 12
    for name, value in ((b"A2B0", lut), (b"wtpt", white), (b"desc", text), (b"cprt", text)):
        tags += name + struct.pack(">II", at + len(content), len(value))
        content += value + bytes(-len(value) % 4)
    header = struct.pack(">I4sI4s4s4s", at + len(content), b"lcms", 0x02100000, b"prtr", b"CMYK", b"Lab ")
    header += bytes(12) + b"acsp" + bytes(28) + struct.pack(">3i", 63190, 65536, 54061) + bytes(48)
    return header + struct.pack(">I", 4) + tags + content

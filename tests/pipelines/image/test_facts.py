"""Facts of an image need no service, give nothing private away unasked, and are the same every time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance
from pydantic import TypeAdapter

from perdure.errors import Permanent
from perdure.pipelines.image.facts import Facts, _av1_depth, distance, facts
from tests.pipelines.image.making import (
    BLUE,
    RED,
    STORED,
    as_stored,
    corners,
    exif,
    frames,
    photo,
    png,
    stored,
    swapped_profile,
)

KINDS = {
    "jpeg": ("image/jpeg", "JPEG"), "progressive": ("image/jpeg", "JPEG"), "png": ("image/png", "PNG"),
    "gif": ("image/gif", "GIF"), "webp": ("image/webp", "WEBP"), "lossless": ("image/webp", "WEBP"),
    "avif": ("image/avif", "AVIF"), "heif": ("image/heic", "HEIF"), "tiff": ("image/tiff", "TIFF"),
    "lzw": ("image/tiff", "TIFF"), "bmp": ("image/bmp", "BMP"), "jp2": ("image/jp2", "JPEG2000"),
    "ppm": ("image/x-portable-anymap", "PPM"), "bigtiff": ("image/tiff", "TIFF"),
}  # fmt: skip


@pytest.mark.parametrize("name", STORED)
def test_every_format_tells_what_it_is(name: str) -> None:
    source = as_stored(corners(), name)

    found = facts(source)

    assert (found.media_type, found.format) == KINDS[name]
    assert (found.width, found.height, found.orientation, found.size_bytes) == (
        60,
        40,
        "landscape",
        len(source),
    )
    assert (found.bit_depth, found.frames, found.animated, found.transparent, found.icc) == (
        8, 1, False, False, False,
    )  # fmt: skip
    assert {colour.name for colour in found.palette[:4]} == {"red", "green", "blue", "yellow"}


@pytest.mark.parametrize("turned", range(1, 9))
@pytest.mark.parametrize("name", ["jpeg", "png", "webp", "avif", "heif", "tiff"])
def test_the_size_is_that_of_the_upright_image(name: str, turned: int) -> None:
    format_, options = STORED[name]

    found = facts(stored(corners(120, 80), format_, **options, exif=exif(Orientation=turned).tobytes()))

    assert (found.width, found.height) == ((120, 80) if turned < 5 else (80, 120))
    assert found.orientation == ("landscape" if turned < 5 else "portrait")


def test_a_jpeg_is_decoded_smaller_and_keeps_its_size() -> None:
    found = facts(stored(photo(1601, 1201), "JPEG"))

    assert (found.width, found.height) == (1601, 1201)
    assert facts(stored(Image.new("RGB", (9, 9)))).orientation == "square"


@pytest.mark.parametrize("name", ["GIF", "WEBP", "PNG", "AVIF"])
def test_animations_tell_their_frames(name: str) -> None:
    first, *others = frames(4)

    found = facts(stored(first, name, save_all=True, append_images=others))

    assert (found.frames, found.animated) == (4, True)


def test_pages_are_no_animation() -> None:
    first, *others = frames(3)

    found = facts(stored(first, "TIFF", save_all=True, append_images=others))

    assert (found.frames, found.animated) == (3, False)


def test_an_animation_cut_after_its_first_frame_still_has_one() -> None:
    first, *others = [photo(80, 60, seed) for seed in range(4)]
    whole = stored(first, "GIF", save_all=True, append_images=others)

    assert 1 <= facts(whole[: len(whole) // 2]).frames < 4


def test_what_follows_the_picture_in_a_jpeg_is_no_frame() -> None:
    first, *others = frames(2)

    found = facts(stored(first, "MPO", save_all=True, append_images=others))

    assert (found.media_type, found.format, found.frames, found.animated) == ("image/jpeg", "JPEG", 1, False)


@pytest.mark.parametrize(("flags", "depth"), [(0x00, 8), (0x40, 10), (0x60, 12)])
def test_the_depth_of_avif_stands_in_its_configuration(flags: int, depth: int) -> None:
    source = stored(corners(), "AVIF")
    at = source.index(b"av1C") + 6

    assert _av1_depth(source[:at] + bytes([flags]) + source[at + 1 :]) == depth
    assert _av1_depth(b"nothing") == 8


@pytest.mark.parametrize(
    ("source", "mode", "depth"),
    [
        (png(2, 2, 16, 2, (b"\0" + b"\x80\0" * 6) * 2), "RGB", 16),
        (stored(Image.new("1", (9, 9))), "1", 1),
        (stored(Image.new("CMYK", (9, 9)), "JPEG"), "CMYK", 8),
        (stored(Image.fromarray(np.zeros((4, 4), np.uint16)), "TIFF"), "I;16", 16),
        (stored(Image.new("F", (4, 4)), "TIFF"), "F", 32),
        (stored(Image.new("LA", (4, 4))), "LA", 8),
    ],
)
def test_mode_and_depth_are_those_of_the_file(source: bytes, mode: str, depth: int) -> None:
    found = facts(source)

    assert (found.mode, found.bit_depth) == (mode, depth)


def test_transparency_and_profile_are_told() -> None:
    see_through = Image.new("RGBA", (9, 9), (1, 2, 3, 4))

    assert facts(stored(see_through)).transparent
    assert facts(stored(corners(), icc_profile=swapped_profile())).icc
    assert facts(stored(Image.new("RGBA", (9, 9), (0, 0, 0, 0)))).palette == ()


# --- what the camera wrote ------------------------------------------------------------------------

WRITTEN: dict[str, Any] = {
    "Make": "Canon", "Model": "Canon EOS R5", "LensModel": "RF 50mm", "DateTimeOriginal": "2024:05:06 07:08:09",
    "OffsetTimeOriginal": "+02:00", "FNumber": 2.8, "ExposureTime": 0.004, "ISOSpeedRatings": 400,
}  # fmt: skip
SECRET: dict[str, Any] = {
    "BodySerialNumber": "SECRET-1", "LensSerialNumber": "SECRET-2", "CameraOwnerName": "SECRET-3",
    "Artist": "SECRET-4", "Copyright": "SECRET-5", "ImageDescription": "SECRET-6",
    "UserComment": b"ASCII\0\0\0SECRET-7", "XPComment": "SECRET-8".encode("utf-16-le"),
    "GPS": {1: "S", 2: (33.0, 30.0, 36.0), 3: "E", 4: (151.0, 12.0, 0.0)},
}  # fmt: skip


def test_camera_time_and_settings_are_told() -> None:
    found = facts(stored(corners(), "JPEG", exif=exif(**WRITTEN)))

    assert (found.camera, found.captured_at) == ("Canon EOS R5", "2024-05-06T07:08:09+02:00")
    assert found.exif == {**WRITTEN, "FNumber": 2.8, "ExposureTime": 0.004}


@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_private_fields_are_given_only_when_asked_for(format_: str) -> None:
    source = stored(corners(), format_, exif=exif(**WRITTEN, **SECRET))

    hidden, open_ = facts(source), facts(source, private=False)

    told = TypeAdapter(Facts).dump_json(hidden)
    assert b"SECRET" not in told
    assert b"itude" not in told
    assert hidden.exif["LensModel"] == "RF 50mm"
    assert (open_.exif["Latitude"], open_.exif["Longitude"]) == (-33.51, 151.2)
    assert {value for value in open_.exif.values() if "SECRET" in str(value)} == {
        f"SECRET-{n}" for n in range(1, 9)
    }


@pytest.mark.parametrize(
    ("fields", "camera", "captured_at"),
    [
        ({"Make": "Apple", "Model": "iPhone 15"}, "Apple iPhone 15", None),
        ({"DateTimeOriginal": "0000:00:00 00:00:00"}, None, None),
        ({"DateTimeOriginal": "yesterday"}, None, None),
        ({"DateTime": "2020:01:02 03:04:05", "OffsetTimeOriginal": "+02:00"}, None, "2020-01-02T03:04:05"),
        (
            {"DateTimeOriginal": "2020:01:02 03:04:05", "OffsetTimeOriginal": "now"},
            None,
            "2020-01-02T03:04:05",
        ),
        ({"Make": "\0\0", "Model": "x" * 5000}, "x" * 200, None),
    ],
)
def test_what_cameras_write_wrongly_is_left_out(
    fields: dict[str, Any], camera: str | None, captured_at: str | None
) -> None:
    found = facts(stored(corners(), "JPEG", exif=exif(**fields)))

    assert (found.camera, found.captured_at) == (camera, captured_at)


# --- colours and hash -----------------------------------------------------------------------------


def test_colours_have_their_share_and_their_name() -> None:
    image = Image.new("RGB", (100, 100), BLUE)
    image.paste(RED, (0, 0, 20, 100))
    image.paste((255, 255, 255), (0, 0, 5, 100))

    found = facts(stored(image))

    assert [(c.hex, c.name, c.share) for c in found.palette] == [
        ("#1e3cdc", "blue", 0.8), ("#dc1e1e", "red", 0.15), ("#ffffff", "white", 0.05),
    ]  # fmt: skip
    assert [c.name for c in found.dominant] == ["blue", "red"]


def test_hidden_pixels_have_no_colour() -> None:
    image = Image.new("RGBA", (100, 100), (0, 255, 0, 0))
    image.paste((*RED, 255), (0, 0, 50, 100))

    assert [c.name for c in facts(stored(image)).palette] == ["red"]


def test_the_same_picture_has_nearly_the_same_hash() -> None:
    image = photo(400, 300)
    known = facts(stored(image)).hash
    alike = [
        stored(image, "JPEG", quality=40),
        stored(image.resize((100, 75)), "WEBP"),
        stored(ImageEnhance.Brightness(image).enhance(0.8)),
        stored(image.convert("L")),
    ]

    assert all(distance(facts(other).hash, known) <= 6 for other in alike)
    assert all(distance(facts(stored(photo(400, 300, seed))).hash, known) >= 16 for seed in range(2, 12))


def test_distance_counts_bits() -> None:
    assert distance("0" * 16, "f" * 16) == 64
    assert distance("00000000000000ff", "000000000000000f") == 4


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.binary(min_size=4, max_size=64))
def test_facts_are_the_same_every_time(width: int, height: int, seed: bytes) -> None:
    pixels = np.resize(np.frombuffer(seed, np.uint8), (height, width, 3))
    source = stored(Image.fromarray(pixels))

    found = facts(source)

    assert found == facts(source)
    assert len(found.hash) == 16
    assert distance(found.hash, found.hash) == 0
    assert abs(sum(colour.share for colour in found.palette) - 1) < 0.001
    adapter = TypeAdapter(Facts)
    assert adapter.validate_json(adapter.dump_json(found)) == found


def test_facts_are_the_same_in_another_process(tmp_path: Path) -> None:
    path = tmp_path / "photo.jpg"
    path.write_bytes(stored(photo(), "JPEG"))
    code = "import sys;from perdure.pipelines.image.facts import facts;print(facts(sys.argv[1]))"
    other = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )

    assert other.stdout.strip() == str(facts(path))


def test_what_cannot_be_read_has_no_facts() -> None:
    with pytest.raises(Permanent) as error:
        facts(stored(photo(), "JPEG")[:5000])
    assert error.value.code == "image_truncated"

"""Whatever somebody sends: a picture as people see it, or a code that says why not. Never half a picture."""

from __future__ import annotations

import io
import random
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from perdure.errors import Permanent
from perdure.pipelines.image import opening
from perdure.pipelines.image.opening import open_image
from perdure.pipelines.image.pixels import ICC_BYTES_MAX, decode, fit
from perdure.settings import Settings
from tests.pipelines.image.making import (
    BLUE,
    GREEN,
    RED,
    STORED,
    YELLOW,
    as_stored,
    chunk,
    corners,
    exif,
    frames,
    ink_profile,
    png,
    stored,
    swapped_profile,
)


def picture(source: bytes | Path, side_max: int = 1000) -> Image.Image:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with open_image(source) as opened:
            return decode(opened, side_max)


def test_a_tiff_whose_directory_is_where_no_file_reaches_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "far.tiff"
    path.write_bytes(b"II+\0\x08\0\0\0" + struct.pack("<Q", (1 << 63) - 1) + bytes(100))
    with pytest.raises(Permanent) as refusal, open_image(path):
        pass
    assert refusal.value.code == "image_truncated"


def refused(source: bytes) -> str:
    with pytest.raises(Permanent) as error:
        picture(source)
    return error.value.code


def near(one: object, other: object, most: int = 12) -> bool:
    return bool(np.abs(np.asarray(one, dtype=int) - np.asarray(other, dtype=int)).max() <= most)


def in_corners(image: Image.Image) -> list[tuple[int, ...]]:
    width, height = image.size
    return [image.getpixel((x, y)) for y in (5, height - 6) for x in (5, width - 6)]  # type: ignore[misc]


# --- what is read ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STORED)
def test_every_format_gives_the_picture(name: str, tmp_path: Path) -> None:
    (tmp_path / "any.bin").write_bytes(as_stored(corners(), name))

    found = picture(tmp_path / "any.bin")

    assert (found.mode, found.size, found.info) == ("RGB", (60, 40), {})
    assert near(in_corners(found), [RED, GREEN, BLUE, YELLOW])


UPRIGHT = {
    1: [RED, GREEN, BLUE, YELLOW], 2: [GREEN, RED, YELLOW, BLUE], 3: [YELLOW, BLUE, GREEN, RED],
    4: [BLUE, YELLOW, RED, GREEN], 5: [RED, BLUE, GREEN, YELLOW], 6: [BLUE, RED, YELLOW, GREEN],
    7: [YELLOW, GREEN, BLUE, RED], 8: [GREEN, YELLOW, RED, BLUE],
}  # fmt: skip


@pytest.mark.parametrize("turned", UPRIGHT)
@pytest.mark.parametrize("name", ["jpeg", "png", "webp", "avif", "heif", "tiff", "lzw"])
def test_all_eight_orientations_are_turned_upright(name: str, turned: int) -> None:
    format_, options = STORED[name]
    tag = exif(Orientation=turned)
    source = stored(
        corners(120, 80), format_, **options, exif=tag.tobytes() if name in ("heif", "webp") else tag
    )

    found = picture(source, 90)

    assert found.size == ((90, 60) if turned < 5 else (60, 90))
    assert near(in_corners(found), UPRIGHT[turned])


@pytest.mark.parametrize("value", [0, 9, 65535])
def test_an_orientation_that_is_none_turns_nothing(value: int) -> None:
    assert near(in_corners(picture(stored(corners(), "JPEG", exif=exif(Orientation=value)))), UPRIGHT[1], 30)


def test_broken_exif_is_no_exif() -> None:
    whole = stored(corners(), "JPEG", exif=exif(Orientation=6, Make="Maker"))
    at = whole.index(b"Exif\0\0") + 6
    for broken in (
        b"\xff" * 20,
        b"MM\0*\xff\xff\xff\xff",
        b"MM\0*\0\0\0\x08\xff\xff",
        b"II*\0\x08\0\0\0\x01\0\x12\x01\xff\xff",
    ):
        assert picture(whole[:at] + broken + whole[at + len(broken) :]).size in ((60, 40), (40, 60))


@pytest.mark.parametrize("name", ["GIF", "WEBP", "PNG", "AVIF", "TIFF", "HEIF"])
def test_of_many_frames_the_first_is_taken(name: str) -> None:
    first, *others = frames(4)

    found = picture(stored(first, name, save_all=True, append_images=others))

    assert found.size == (40, 30)
    assert near(found.getpixel((20, 15)), first.getpixel((20, 15)))


def test_sixteen_bits_are_scaled_and_not_clipped() -> None:
    ramp = np.linspace(0, 65535, 256, dtype=np.uint16).reshape(16, 16)
    wanted = np.repeat((ramp >> 8).astype(np.uint8)[..., None], 3, axis=2)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in ramp)

    assert near(np.asarray(picture(png(16, 16, 16, 0, rows))), wanted, 1)
    for format_ in ("PNG", "TIFF", "PPM"):
        assert near(np.asarray(picture(stored(Image.fromarray(ramp), format_))), wanted, 1)
    swapped = Image.frombytes("I;16B", (16, 16), ramp.astype(">u2").tobytes())
    assert near(np.asarray(picture(stored(swapped, "TIFF"))), wanted, 1)


def test_sixteen_bits_of_colour_and_transparency() -> None:
    row = b"\0" + struct.pack(">4H", 0xFFFF, 0x8000, 0x0000, 0x4000) * 16

    found = picture(png(16, 16, 16, 6, row * 16))

    assert (found.mode, found.getpixel((8, 8))) == ("RGBA", (255, 128, 0, 64))


@pytest.mark.parametrize(
    ("low", "high", "first", "last"),
    [(0.0, 1.0, 0, 255), (0.0, 200.0, 0, 200), (-50.0, 50.0, 0, 255), (0.0, 1e6, 0, 255), (7.0, 7.0, 7, 7)],
)
def test_numbers_of_any_range_become_a_picture(low: float, high: float, first: int, last: int) -> None:
    values = np.linspace(low, high, 64, dtype=np.float32).reshape(8, 8)
    values[3, 3] = np.nan if low == 0 else values[3, 3]

    found = np.asarray(picture(stored(Image.fromarray(values), "TIFF")))

    assert (found[0, 0, 0], found[7, 7, 0]) == (first, last)


def test_whole_numbers_of_32_bits() -> None:
    values = np.array([[-(2**31), 0], [2**30, 2**31 - 1]], dtype=np.int32)

    found = np.asarray(picture(stored(Image.fromarray(values), "TIFF")))[..., 0]

    assert near(found, [[0, 128], [191, 255]], 1)


@pytest.mark.parametrize("mode", ["1", "L", "P"])
def test_black_and_white_grey_and_palettes(mode: str) -> None:
    source = Image.new("L", (20, 20), 255)
    source.paste(0, (0, 0, 10, 20))

    found = picture(stored(source.convert(mode)))

    assert (found.mode, found.getpixel((2, 2)), found.getpixel((17, 2))) == (
        "RGB",
        (0, 0, 0),
        (255, 255, 255),
    )


def test_transparency_is_kept_in_each_of_its_forms() -> None:
    solid = corners(20, 20)
    half = solid.convert("RGBA")
    half.putalpha(100)
    grey = Image.new("LA", (20, 20), (90, 100))
    opaque = solid.convert("RGBA")
    by_index, by_colour = solid.quantize(4), solid

    assert picture(stored(half)).getpixel((2, 2)) == (*RED, 100)
    assert picture(stored(grey)).getpixel((2, 2)) == (90, 90, 90, 100)
    assert picture(stored(opaque)).mode == "RGB"
    red = by_index.getpixel((2, 2))
    for source in (stored(by_index, transparency=red), stored(by_index, "GIF", transparency=red)):
        found = picture(source)
        assert (found.mode, found.getpixel((2, 2))[3], found.getpixel((17, 2))) == ("RGBA", 0, (*GREEN, 255))  # type: ignore[index]
    found = picture(stored(by_colour, transparency=RED))
    assert (found.getpixel((2, 2))[3], found.getpixel((17, 17))) == (0, (*YELLOW, 255))  # type: ignore[index]
    assert picture(stored(Image.new("1", (20, 20)), transparency=0)).getpixel((2, 2))[3] == 0  # type: ignore[index]


def test_a_transparent_edge_takes_no_colour_from_what_is_hidden() -> None:
    source = Image.new("RGBA", (400, 400), (0, 255, 0, 0))
    source.paste((255, 0, 0, 255), (0, 0, 203, 400))

    found = np.asarray(picture(stored(source), 40))

    assert found[found[..., 3] > 30][:, 1].max() < 10


# --- colour ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("format_", ["JPEG", "TIFF"])
def test_inks_are_converted_through_their_profile_if_there_is_one(format_: str) -> None:
    inks = Image.new("CMYK", (20, 20), (0, 200, 200, 0))

    assert near(picture(stored(inks, format_)).getpixel((3, 3)), (255, 55, 55))
    found = picture(stored(inks, format_, icc_profile=ink_profile())).getpixel((3, 3))
    assert near(found, (123, 205, 245))


def test_inks_are_inverted_only_in_what_adobe_writes() -> None:
    source = stored(Image.new("CMYK", (16, 16), (0, 200, 200, 0)), "JPEG", quality=100)
    at = source.index(b"\xff\xee")
    other = source[:at] + source[at + 2 + int.from_bytes(source[at + 2 : at + 4], "big") :]

    assert near(picture(source).getpixel((3, 3)), (255, 55, 55))
    assert near(picture(other).getpixel((3, 3)), (0, 0, 0))  # the same numbers, now 255 is full ink


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_colours_go_through_their_profile(mode: str) -> None:
    source = Image.new("RGB", (20, 20), RED).convert(mode)
    if mode == "RGBA":
        source.putalpha(120)

    found = picture(stored(source, icc_profile=swapped_profile()))

    assert found.mode == mode
    assert near(found.getpixel((3, 3))[:3], (30, 220, 30))  # type: ignore[index]


@pytest.mark.parametrize(
    "profile", [b"no profile", b"\0" * 200, ink_profile(), swapped_profile() + b"x" * ICC_BYTES_MAX]
)
def test_a_profile_that_is_broken_huge_or_for_others_is_left_out(profile: bytes) -> None:
    source = stored(Image.new("RGB", (20, 20), RED), "TIFF", icc_profile=profile)

    assert picture(source).getpixel((3, 3)) == RED


def test_lab_becomes_rgb() -> None:
    from PIL import ImageCms

    to_lab = ImageCms.buildTransform(
        ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), "RGB", "LAB"
    )
    lab = ImageCms.applyTransform(corners(), to_lab)
    assert lab is not None

    assert near(in_corners(picture(stored(lab, "TIFF"))), [RED, GREEN, BLUE, YELLOW])


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "image_empty"),
        (b"<!doctype html><html><body>Please log in</body></html>", "type_mismatch"),
        (b"%PDF-1.7\n", "type_mismatch"),
        (b"just some words", "type_mismatch"),
        (b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>', "type_unsupported"),
        (b'<?xml version="1.0"?><!-- x --><svg width="1"></svg>', "type_unsupported"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "type_mismatch"),
        (bytes(range(256)) * 4, "type_unsupported"),
        (b"\x00\x00\x01\x00" + b"\x10" * 60, "type_unsupported"),
        (png(0, 10, 8, 2, b""), "image_corrupt"),
        (png(10, 10, 8, 2, b"\0" * 20), "image_truncated"),
        (b"GIF89a" + bytes(20), "image_truncated"),
        (b"GIF89a" + bytes(20) + b";", "image_corrupt"),
    ],
)
def test_what_is_no_image_says_what_it_is(content: bytes, code: str) -> None:
    assert refused(content) == code


def test_a_bomb_is_found_before_it_is_decoded() -> None:
    rows = b"\0" * 1000
    for width, height in ((20_000, 20_000), (100_000_001, 1), (2**31 - 1, 2**31 - 1)):
        assert refused(png(width, height, 8, 2, rows)) == "image_bomb"


@pytest.mark.parametrize("kind", [b"zTXt", b"iTXt", b"iCCP"])
def test_text_that_unpacks_without_end_is_a_bomb(kind: bytes) -> None:
    whole = stored(Image.new("L", (8, 8)))
    head = b"k\0\1\0\0\0" if kind == b"iTXt" else b"k\0\0"
    text = chunk(kind, head + zlib.compress(bytes(8 << 20)))
    assert refused(whole[:33] + text + whole[33:]) == "image_bomb"


def test_very_many_rows_are_refused_however_short_they_are() -> None:
    assert refused(png(1, 16_777_223, 8, 0, b"")) == "image_bomb"


def test_the_limit_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    source = stored(Image.new("L", (101, 100)))
    monkeypatch.setenv("PERDURE_IMAGE_PIXELS_MAX", "10100")
    assert picture(source).size == (101, 100)
    monkeypatch.setenv("PERDURE_IMAGE_PIXELS_MAX", "10099")
    assert refused(source) == "image_bomb"
    assert Settings.model_fields["image_pixels_max"].default == 100_000_000


def test_a_limit_above_pillows_own_holds(
    recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000)
    source = stored(Image.new("L", (100, 100)))
    with open_image(source, 10_000) as opened:
        assert decode(opened, 10).size == (10, 10)
    assert not recwarn.list


def test_heic_without_its_reader_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    source = as_stored(corners(), "heif")
    monkeypatch.setattr(opening, "heif_installed", lambda: False)
    with pytest.raises(Permanent) as error:
        picture(source)
    assert error.value.code == "heif_needed"
    assert "pip install 'perdure[images]'" in str(error.value)


def test_a_file_that_is_not_there_is_no_fault_of_the_image(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        picture(tmp_path / "gone.jpg")


@pytest.mark.parametrize("name", STORED)
def test_cut_anywhere_it_is_refused_or_whole(name: str) -> None:
    source = as_stored(corners(), name)
    whole = np.asarray(picture(source))
    places = {
        *range(1, 40),
        *(len(source) * n // 60 for n in range(1, 60)),
        *range(len(source) - 20, len(source)),
    }
    codes = set()
    for place in sorted(place for place in places if 0 < place < len(source)):
        try:
            found = picture(source[:place])
        except Permanent as error:
            codes.add(error.code if place > 16 else "image_truncated")  # of less nobody can tell what it is
        else:
            assert np.array_equal(np.asarray(found), whole), place
    if (
        name == "lzw"
    ):  # what its directory points to may be missing too, and a TIFF does not say how long it is
        codes.discard("image_corrupt")
    assert codes == {"image_truncated"}


@pytest.mark.parametrize("name", STORED)
def test_damaged_anywhere_it_is_a_picture_or_refused(name: str) -> None:
    rng = random.Random(name)
    source = as_stored(corners(), name)
    codes = set()
    for _ in range(60):
        damaged = bytearray(source)
        for _ in range(rng.choice((1, 1, 3, 10))):
            damaged[rng.randrange(min(len(damaged), rng.choice((64, 600, 10**9))))] = rng.randrange(256)
        try:
            found = picture(bytes(damaged), 50)
        except Permanent as error:
            codes.add(error.code)
        else:
            assert found.mode in ("RGB", "RGBA")
            assert max(found.size) <= 50
    assert codes <= {"image_truncated", "image_corrupt", "image_bomb", "type_unsupported", "type_mismatch"}


def test_sizes_fit_and_never_grow() -> None:
    assert fit((4000, 3000), 2048) == (2048, 1536)
    assert fit((100, 50), 2048) == (100, 50)
    assert fit((100_000, 3), 256) == (256, 1)
    assert fit((3, 100_000), 256) == (1, 256)


def test_a_jpeg_decoded_smaller_looks_as_if_made_smaller_afterwards() -> None:
    source = stored(corners(1600, 1200).resize((1600, 1200)), "JPEG", quality=95)
    with Image.open(io.BytesIO(source)) as image:
        wanted = image.convert("RGB").resize((100, 75), Image.Resampling.LANCZOS)

    found = picture(source, 100)

    assert found.size == wanted.size
    assert np.abs(np.asarray(found, dtype=int) - np.asarray(wanted, dtype=int)).mean() < 1

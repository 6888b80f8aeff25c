"""Six files for every image: not larger than it is, upright, sRGB, without metadata, the same bytes every time."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from perdure.errors import Permanent
from perdure.pipelines.image.facts import distance, facts
from perdure.pipelines.image.variants import preview, variants
from tests.pipelines.image.making import RED, corners, exif, frames, photo, stored, swapped_profile

KEYS = ["large.webp", "large.avif", "medium.webp", "medium.avif", "thumbnail.webp", "thumbnail.avif"]


def opened(content: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(content))
    image.load()
    return image


def test_a_photo_gets_three_sizes_in_two_formats() -> None:
    source = stored(photo(2400, 450), "JPEG", quality=90)

    made = list(variants(source))

    assert [variant.key for variant in made] == KEYS
    sizes = {"large": (2048, 384), "medium": (1024, 192), "thumbnail": (256, 48)}
    known = facts(source).hash
    for variant in made:
        image = opened(variant.content)
        assert (variant.width, variant.height) == image.size == sizes[variant.name]
        assert (image.format or "").lower() == variant.format
        assert variant.media_type == f"image/{variant.format}"
        assert distance(facts(variant.content).hash, known) <= 4


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (100, 60), (300, 5), (1, 3000), (5000, 2)])
def test_nothing_is_made_larger_and_no_side_vanishes(size: tuple[int, int]) -> None:
    made = list(variants(stored(Image.new("RGB", size, RED))))

    assert [variant.key for variant in made] == KEYS
    for variant in made:
        image = opened(variant.content)
        assert image.size == (variant.width, variant.height)
        assert all(1 <= new <= old for new, old in zip(image.size, size, strict=True))
        assert max(image.size) == min(
            max(size), {"large": 2048, "medium": 1024, "thumbnail": 256}[variant.name]
        )


def test_metadata_is_stripped_and_the_image_is_upright() -> None:
    tags = exif(Make="SECRET", Orientation=6, Artist="SECRET", GPS={1: "N", 2: (1.0, 2.0, 3.0)})
    source = stored(
        corners(400, 200),
        "JPEG",
        exif=tags,
        icc_profile=swapped_profile(),
        comment=b"SECRET",
        xmp=b"<x>SECRET</x>",
    )

    for variant in variants(source):
        image = opened(variant.content)
        assert b"SECRET" not in variant.content
        assert not {"exif", "icc_profile", "xmp", "comment"} & {
            key for key, value in image.info.items() if value
        }
        assert (variant.width * 2, image.getexif().get(0x0112, 1)) == (variant.height, 1)
        red, green, _ = image.convert("RGB").getpixel((variant.width - 9, 9))  # type: ignore[misc]
        assert green > red + 100  # the red corner, which the profile calls green


def test_transparency_is_kept() -> None:
    image = Image.new("RGBA", (600, 400), (0, 0, 0, 0))
    image.paste((*RED, 255), (0, 0, 300, 400))

    for variant in variants(stored(image)):
        found = np.asarray(opened(variant.content))
        assert found.shape[2] == 4
        assert (found[0, 0, 3], found[0, -1, 3]) == (255, 0)


def test_of_an_animation_the_first_frame_is_shown() -> None:
    first, *others = frames(3)

    for variant in variants(stored(first, "GIF", save_all=True, append_images=others)):
        image = opened(variant.content)
        assert getattr(image, "n_frames", 1) == 1
        found = np.asarray(image.convert("RGB").getpixel((20, 15)), dtype=int)
        assert np.abs(found - np.asarray(first.getpixel((20, 15)))).max() <= 6


@settings(max_examples=15, deadline=None)
@given(
    st.integers(1, 150), st.integers(1, 150), st.integers(0, 9), st.sampled_from(["RGB", "RGBA", "L", "P"])
)
def test_the_same_image_gives_the_same_bytes(width: int, height: int, seed: int, mode: str) -> None:
    source = stored(photo(width, height, seed).convert(mode))

    assert list(variants(source)) == list(variants(source))


@pytest.mark.full
def test_another_process_on_one_processor_gives_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "photo.jpg"
    path.write_bytes(stored(photo(1200, 500), "JPEG"))
    code = (
        "import hashlib,os,sys;os.sched_setaffinity(0,{min(os.sched_getaffinity(0))})\n"
        "from perdure.pipelines.image.variants import variants\n"
        "print(hashlib.sha256(b''.join(v.content for v in variants(sys.argv[1]))).hexdigest())"
    )
    other = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )

    here = hashlib.sha256(b"".join(variant.content for variant in variants(path))).hexdigest()
    assert other.stdout.strip() == here


def test_a_preview_is_a_medium_jpeg_on_white() -> None:
    see_through = Image.new("RGBA", (3000, 1000), (0, 0, 0, 0))

    found = opened(preview(stored(see_through)))

    assert (found.format, found.size, found.mode) == ("JPEG", (1024, 341), "RGB")
    assert min(found.getpixel((500, 100))) > 250  # type: ignore[arg-type]
    assert not found.getexif()


def test_half_an_image_gives_no_variant_at_all() -> None:
    source = stored(photo(), "JPEG")
    with pytest.raises(Permanent) as error:
        next(variants(source[: len(source) // 2]))
    assert error.value.code == "image_truncated"

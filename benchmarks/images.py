"""How fast images are: six variants of a 12 megapixel JPEG, beside bare Pillow making the same six files.

    python benchmarks/images.py [--runs 3]

Bare Pillow opens the file once, turns it upright, and makes each size from the full image with the same filter,
encoders and settings. Ours and bare take turns, and the median of each counts. Facts and the preview for a vision
service are measured too.
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Callable
from statistics import median

import numpy as np
from PIL import Image, ImageOps

from perdure.pipelines.image.facts import facts
from perdure.pipelines.image.variants import FORMATS, SIDES, preview, variants

TARGET = 1.3


def photo() -> bytes:
    """4000 x 3000 pixels with shapes of all sizes, as a camera would write them."""
    rng = np.random.default_rng(1)
    layers = [
        np.asarray(
            Image.fromarray(rng.integers(0, 256, (3 * side, 4 * side, 3), dtype=np.uint8)).resize(
                (4000, 3000), 3
            )
        ).astype(np.float32)
        for side in (4, 16, 64, 256)
    ]
    mixed = sum(layer / 2 ** (n + 1) for n, layer in enumerate(layers))
    file = io.BytesIO()
    Image.fromarray(np.clip(mixed, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def bare(source: bytes) -> list[bytes]:
    """The same six files with nothing but Pillow."""
    made = []
    with Image.open(io.BytesIO(source)) as image:
        upright = ImageOps.exif_transpose(image).convert("RGB")
    for side in SIDES.values():
        small = upright.copy()
        small.thumbnail((side, side), Image.Resampling.LANCZOS)
        for format_, options in FORMATS.items():
            file = io.BytesIO()
            small.save(file, format_.upper(), **options)
            made.append(file.getvalue())
    return made


def timed(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    source = photo()
    ours_size, bare_size = sum(len(v.content) for v in variants(source)), sum(map(len, bare(source)))
    pairs = [(timed(lambda: list(variants(source))), timed(lambda: bare(source))) for _ in range(runs)]
    ours_s, bare_s = median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)
    print(f"a JPEG of 4000 x 3000 pixels, {len(source) / 1e6:.1f} MB, median of {runs} runs")
    print(
        f"six variants     ours {ours_s:6.3f} s   bare Pillow {bare_s:6.3f} s   ratio {ours_s / bare_s:.2f}"
    )
    print(f"their size       ours {ours_size:>8,} B   bare Pillow {bare_size:>8,} B")
    print(f"facts            {median(timed(lambda: facts(source)) for _ in range(runs)):6.3f} s")
    print(f"preview          {median(timed(lambda: preview(source)) for _ in range(runs)):6.3f} s")
    if ours_s > TARGET * bare_s:
        raise SystemExit(f"more than {TARGET} x of bare Pillow")


if __name__ == "__main__":
    main()

"""The colours of a picture: which ones, and how much of it they cover. The same picture always gives the same."""

from __future__ import annotations

import numpy as np
from PIL import Image

from perdure.core.frozen import frozen

PALETTE_MAX = 8
DOMINANT_MAX = 3
DOMINANT_SHARE = 0.1
_NEAR = 80.0  # colours closer than this are one
_STEP_BITS = 4  # of each channel, when pixels are counted
_OPAQUE = 128

_NAMES = {
    "black": 0x000000, "dark gray": 0x404040, "gray": 0x808080, "silver": 0xC0C0C0, "white": 0xFFFFFF,
    "red": 0xE02020, "maroon": 0x700000, "pink": 0xFFB0C0, "salmon": 0xFA8072, "orange": 0xFF8C00,
    "brown": 0x8B4513, "tan": 0xD2B48C, "beige": 0xF5F0DC, "gold": 0xE0B020, "yellow": 0xFFF020,
    "olive": 0x808000, "lime": 0x40F040, "green": 0x108020, "dark green": 0x004000, "teal": 0x008080,
    "cyan": 0x20E0F0, "sky blue": 0x87CEEB, "blue": 0x2040F0, "navy": 0x000060, "purple": 0x702090,
    "violet": 0xB080F0, "magenta": 0xF020F0,
}  # fmt: skip


@frozen
class Colour:
    """A colour, its nearest common name, and the part of the visible pixels that have it or nearly so."""

    hex: str
    name: str
    share: float


def palette(picture: Image.Image) -> tuple[Colour, ...]:
    """Up to eight colours, the one that covers most first; none where everything is transparent."""
    colours, counts = _counted(picture)
    order = np.argsort(-counts, kind="stable")
    found: list[tuple[np.ndarray, int]] = []  # mean, pixels
    for colour, count in zip(colours[order], counts[order].tolist(), strict=True):
        distances = [_distance(colour, mean) for mean, _ in found]
        nearest = int(np.argmin(distances)) if distances else -1
        if distances and (distances[nearest] < _NEAR or len(found) == PALETTE_MAX):
            mean, pixels = found[nearest]
            found[nearest] = ((mean * pixels + colour * count) / (pixels + count), pixels + count)
        else:
            found.append((colour, count))
    total = int(counts.sum())
    ranked = sorted(found, key=lambda entry: -entry[1])
    return tuple(_colour(mean, pixels / total) for mean, pixels in ranked)


def dominant(found: tuple[Colour, ...]) -> tuple[Colour, ...]:
    """Of a palette those that one would name: up to three, the first in any case."""
    return found[:1] + tuple(colour for colour in found[1:DOMINANT_MAX] if colour.share >= DOMINANT_SHARE)


def _counted(picture: Image.Image) -> tuple[np.ndarray, np.ndarray]:
    """The mean colours of the cells that pixels fall into, and how many do."""
    pixels = np.asarray(picture).reshape(-1, len(picture.getbands()))
    if pixels.shape[1] == 4:
        pixels = pixels[pixels[:, 3] >= _OPAQUE]
    steps = (pixels[:, :3] >> (8 - _STEP_BITS)).astype(np.int64)
    cells = (steps[:, 0] << 2 * _STEP_BITS) | (steps[:, 1] << _STEP_BITS) | steps[:, 2]
    known, where, counts = np.unique(cells, return_inverse=True, return_counts=True)
    sums = np.stack([np.bincount(where, pixels[:, n], len(known)) for n in range(3)], axis=1)
    return sums / np.maximum(counts, 1)[:, None], counts


def _distance(one: np.ndarray, other: np.ndarray) -> float:
    """How different two colours look, roughly: reds and blues count by how red both are."""
    red = (one[0] + other[0]) / 2
    weights = np.array([2 + red / 256, 4, 2 + (255 - red) / 256])
    return float(np.sqrt((weights * (one - other) ** 2).sum()))


def _colour(mean: np.ndarray, share: float) -> Colour:
    red, green, blue = (int(value) for value in mean.round())
    name = min(_NAMES, key=lambda name: _distance(mean, _rgb(_NAMES[name])))
    return Colour(f"#{red:02x}{green:02x}{blue:02x}", name, round(share, 4))


def _rgb(value: int) -> np.ndarray:
    return np.array([value >> 16, value >> 8 & 255, value & 255], float)

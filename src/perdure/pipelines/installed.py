"""Pipelines that need more than Perdure itself, where that is installed."""

from __future__ import annotations

from importlib.util import find_spec

from perdure import Pipeline


def image_pipeline() -> Pipeline | None:
    """The one for images; None without the extra `images`."""
    if find_spec("PIL") is None:
        return None
    from perdure.pipelines.image.pipeline import images

    return images

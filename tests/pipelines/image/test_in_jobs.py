"""Images as stages in processes of their own: what they give is saved as it is, a bad one is dead with its code."""

from __future__ import annotations

import pytest

from perdure.pipelines.image.describe import fallback
from perdure.pipelines.image.facts import facts
from perdure.pipelines.image.variants import variants
from perdure.testing import drain, trial
from tests.pipelines.image.making import photo, png, stored
from tests.pipelines.image.staged import images


def test_what_a_cell_gives_is_what_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERDURE_VISION_URL", raising=False)
    source = stored(photo(1200, 300), "JPEG")
    with trial(images, cells=True) as app:
        added = app.add(data=source, name="photo.jpg", pipeline=images)
        assert drain(app).done == 1
        assert app.output(added.id, "facts") == facts(source)
        assert app.output(added.id, "copies") == list(variants(source))
        assert app.output(added.id, "description") == fallback()


def test_a_bad_image_is_dead_at_once_and_its_neighbour_is_not() -> None:
    whole = stored(photo(), "JPEG")
    bad = {
        "image_bomb": png(40_000, 40_000, 8, 2, b""),
        "image_truncated": whole[:-400],
        "type_mismatch": b"<html><body>Please log in</body></html>",
    }
    with trial(images, cells=True) as app:
        added = {code: app.add(data=data, name="a.jpg", pipeline=images).id for code, data in bad.items()}
        good = app.add(data=whole, name="b.jpg", pipeline=images)
        summary = drain(app)
        assert (summary.done, summary.dead) == (1, 3)
        for code, id_ in added.items():
            status = app.status(id_)
            assert (status.state, status.attempts_made, status.error_code) == ("dead", 1, code)
        assert app.status(good.id).state == "done"

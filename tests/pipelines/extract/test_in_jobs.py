"""Extraction as a stage: pages are saved, a crash repeats only the one in hand, a bad file is dead with its code."""

from __future__ import annotations

from pathlib import Path

from perdure.pipelines.extract import extract, join
from perdure.testing import drain, trial
from tests.pipelines.extract import hostile, made
from tests.pipelines.extract.staged import books


def test_a_crash_in_the_middle_repeats_one_page(tmp_path: Path) -> None:
    path, log = tmp_path / "long.pdf", tmp_path / "pages"
    path.write_bytes(made.long_pdf(40))
    with trial(books, cells=True) as app:
        added = app.add(path=path, pipeline=books, meta={"die_at": 17, "log": str(log)})
        assert drain(app).done == 1
        assert app.status(added.id).attempts_made == 2
    read = [int(line) for line in log.read_text().split()]
    assert read == [*range(1, 18), *range(17, 41)]
    assert log.with_suffix(".md").read_text() == join(extract(path))


def test_what_cannot_be_read_is_dead_at_once(tmp_path: Path) -> None:
    with trial(books, cells=True) as app:
        meta = {"log": str(tmp_path / "pages")}
        bad = app.add(data=hostile.flate_bomb(), name="bomb.pdf", pipeline=books, meta=meta)
        good = app.add(data=hostile.good_pdf(), name="good.pdf", pipeline=books, meta=meta)
        summary = drain(app)
        assert (summary.done, summary.dead) == (1, 1)
        status = app.status(bad.id)
        assert (status.state, status.attempts_made) == ("dead", 1)
        assert "document_bomb" in str(status)
        assert app.status(good.id).state == "done"

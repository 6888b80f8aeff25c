"""What those ask who follow many documents at once: where they stand, what they saved, what they left behind."""

from __future__ import annotations

from perdure import Context, Document, Pipeline, Result, Transient
from perdure.testing import drain, tick, trial

after = Pipeline("after")
pages = Pipeline("pages", then=[after])


@after.stage
def tell(doc: Document) -> int:
    return 1


@pages.stage
def read(doc: Document, ctx: Context) -> Result[int]:
    for _ in ctx.items(range(3), key=str):
        pass
    if ctx.attempt == 1:
        raise Transient("busy")
    return Result(3, spawn=[after.job(doc)])


def test_many_are_asked_for_at_once(store_url: str) -> None:
    with trial(pages, store=store_url) as app:
        store = app.service.store
        ids = [app.add(text=f"text {n}", pipeline=pages).id for n in range(3)]
        assert app._call(store.statuses("default", [])) == []
        found = app._call(store.statuses("default", [*ids[1:], "unknown"]))
        assert {status.id: status.state for status in found} == dict.fromkeys(ids[1:], "queued")
        assert app._call(store.statuses("other", ids)) == []

        tick(app)
        found = app._call(store.statuses("default", ids))
        assert {status.state for status in found} == {"waiting"}
        assert app._call(store.items_saved(found)) == dict.fromkeys(ids, 3)
        assert app._call(store.items_saved([])) == {}
        assert sorted(app._call(store.jobs_open("default", ids[:2]))) == [f"doc-{id_}" for id_ in ids[:2]]

        app.clock.advance(60)
        tick(app)
        assert {status.state for status in app._call(store.statuses("default", ids))} == {"done"}
        assert sorted(app._call(store.jobs_open("default", ids))) == [f"doc-{id_}/after" for id_ in ids]
        drain(app)
        assert app._call(store.jobs_open("default", ids)) == []

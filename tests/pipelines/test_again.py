"""Documents that come again: a URL is fetched anew, other content under a known key takes the place of the old."""

from __future__ import annotations

import pytest

from perdure import Context, Document, Pipeline
from perdure.core.events import StageSaved
from perdure.pipelines.document import documents
from perdure.testing import Trial, drain, failing, recording, tick, trial
from tests.calls.web import Hit, Web

WHALES = b"<html><body><p>Whales sing in the deep blue sea, and they travel very far.</p></body></html>"
SHIPS = b"<html><body><p>Ships wait longer in the harbour after each storm of the year.</p></body></html>"


@pytest.fixture(autouse=True)
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_ALLOW_LOOPBACK", "true")


class Page:
    """A page that knows its etag, and answers 304 to whoever knows it too."""

    def __init__(self, web: Web, content: bytes, etag: str | None = '"1"') -> None:
        self.content, self.etag, self.statuses = content, etag, list[int]()
        web.routes["/page"] = self.answer

    def answer(self, hit: Hit) -> None:
        known = self.etag is not None and hit.headers.get("if-none-match") == self.etag
        self.statuses.append(304 if known else 200)
        tags = {} if self.etag is None else {"etag": self.etag}
        if known:
            hit.answer(304, b"", **tags)
        else:
            hit.answer(200, self.content, content_type="text/html", **tags)


def ran(app: Trial) -> list[str]:
    """The stages that ran while the app drained."""
    events = recording(app)
    assert drain(app).dead == 0
    return [event.stage for event in events.of(StageSaved) if event.pipeline == "document"]


def answers(app: Trial, id_: str) -> list[str]:
    return [
        data["answer"] for _, data in sorted(app.rows(id_, "fetch"), key=lambda row: row[0]["generation"])
    ]


def test_a_page_that_did_not_change_is_not_read_again(store_url: str) -> None:
    with Web() as web, trial(documents, store=store_url) as app:
        page, url = Page(web, WHALES), web.url("/page")
        first = app.add(url=url, pipeline=documents)
        drain(app)
        chunks = app.chunks(first.id)
        again = app.add(url=url, pipeline=documents)
        assert (again.id, again.answer) == (first.id, "requeued")
        assert ran(app) == ["fetch"]
        assert page.statuses == [200, 304]
        assert app.chunks(first.id) == chunks
        assert answers(app, first.id) == ["fetched", "unchanged"]


def test_a_page_whose_server_knows_no_etags_is_compared(store_url: str) -> None:
    with Web() as web, trial(documents, store=store_url) as app:
        page, url = Page(web, WHALES, etag=None), web.url("/page")
        id_ = app.add(url=url, pipeline=documents).id
        drain(app)
        app.add(url=url, pipeline=documents)
        assert ran(app) == ["fetch"]
        assert page.statuses == [200, 200]
        assert answers(app, id_) == ["fetched", "unchanged"]


def test_a_page_that_changed_is_found_by_what_it_says_now(store_url: str) -> None:
    with Web() as web, trial(documents, store=store_url) as app:
        page, url = Page(web, WHALES), web.url("/page")
        id_ = app.add(url=url, pipeline=documents).id
        drain(app)
        page.content, page.etag = SHIPS, '"2"'
        app.add(url=url, pipeline=documents)
        assert [hit.document_id for hit in app.search("whales sing")] == [id_]  # until the new one is there
        assert ran(app) == ["fetch", "extract", "chunk", "embed", "index"]
        assert answers(app, id_) == ["fetched", "refreshed"]
        assert "harbour" in app.search("ships harbour")[0].snippet
        assert not any("Whales" in hit.snippet for hit in app.search("whales"))


def test_a_page_that_is_being_processed_simply_exists(store_url: str) -> None:
    with Web() as web, trial(documents, store=store_url) as app:
        Page(web, WHALES)
        first = app.add(url=web.url("/page"), pipeline=documents)
        assert app.add(url=web.url("/page"), pipeline=documents) == (
            type(first)(first.id, "exists", "queued")
        )
        assert [a.answer for a in app.add_many([{"url": web.url("/page")}], pipeline=documents)] == ["exists"]


def test_a_page_that_is_gone_leaves_what_was_read_of_it(store_url: str) -> None:
    with Web() as web, trial(documents, store=store_url) as app:
        Page(web, WHALES)
        id_ = app.add(url=web.url("/page"), pipeline=documents).id
        drain(app)
        web.page("/page", b"gone", 410)
        app.add(url=web.url("/page"), pipeline=documents)
        assert drain(app).dead == 1
        assert app.status(id_).error_code == "http_410"
        assert [hit.document_id for hit in app.search("whales")] == [id_]


notes = Pipeline("notes")
seen: list[str | None] = []


@notes.stage
def read(doc: Document, previous: str | None) -> str:
    seen.append(previous)
    return doc.text


@notes.stage
def count(read: str, ctx: Context) -> int:
    return len(read)


def test_other_content_under_a_key_takes_the_place_of_the_old(store_url: str) -> None:
    seen.clear()
    with trial(notes, store=store_url) as app:
        first = app.add(text="one", key="note-1", pipeline=notes)
        drain(app)
        assert app.add(text="one", key="note-1", pipeline=notes).answer == "unchanged"
        again = app.add(text="three", key="note-1", name="other.txt", pipeline=notes)
        assert (again.id, again.answer) == (first.id, "refreshed")
        assert drain(app).done == 1
        assert (app.output(first.id, "count"), app.status(first.id).name) == (5, "other.txt")
        assert seen == [None, "one"]


def test_a_stage_can_be_run_anew_alone(store_url: str) -> None:
    seen.clear()
    with trial(notes, store=store_url) as app:
        id_ = app.add(text="one", pipeline=notes).id
        drain(app)
        with failing(count) as counted:
            assert app.requeue(id_, from_stage="read", only=True) == "requeued"
            drain(app)
            assert (seen, counted.count) == ([None, "one"], 0)
            assert app.requeue(id_, from_stage="read") == "requeued"
            drain(app)
            assert counted.count == 1


lists = Pipeline("notes")  # as somebody rewrote it


@lists.stage(version=2)
def read_(doc: Document, previous: list[int] | None) -> list[int]:
    seen.append(str(previous))
    return [len(doc.text)]


read_.name = "read"


def test_what_was_saved_as_another_type_is_as_if_it_were_not_there(store_url: str) -> None:
    with trial(notes, store=store_url) as app:
        id_ = app.add(text="one", pipeline=notes).id
        drain(app)
    seen.clear()
    with trial(lists, store=store_url) as app:
        app.requeue(id_)
        assert drain(app).done == 1
        app.requeue(id_, from_stage="read")
        assert drain(app).done == 1
        assert seen == ["None", "[3]"]


def test_other_content_cuts_off_what_is_in_progress(store_url: str) -> None:
    with trial(notes, store=store_url) as app:
        id_ = app.add(text="one", key="note-1", pipeline=notes).id
        with failing(read, RuntimeError("not yet")):
            tick(app)
        assert app.status(id_).state == "waiting"
        assert app.add(text="three", key="note-1", pipeline=notes).answer == "refreshed"
        assert (app.status(id_).state, app.status(id_).generation) == ("queued", 2)
        assert drain(app).done == 1
        assert app.output(id_, "count") == 5


family = Pipeline("family")


@family.stage
def grow(doc: Document, ctx: Context) -> int:
    for key, _, text in (line.partition("=") for line in doc.text.split()):
        ctx.emit(notes.child(key, text=text, refresh=True))
    return 0


def test_a_child_with_other_content_is_processed_again(store_url: str) -> None:
    with trial([family, notes], store=store_url) as app:
        app.add(text="a=one b=two", key="all", pipeline=family)
        assert drain(app).done == 3
        children = {d.id: d.generation for d in app.documents() if d.pipeline == "notes"}
        app.add(text="a=one b=other c=new", key="all", pipeline=family)
        assert drain(app).dead == 0
        after = {d.id: d.generation for d in app.documents() if d.pipeline == "notes"}
        assert sorted(after.values()) == [1, 1, 2]
        assert sorted(app.output(id_, "count") for id_ in after) == [3, 3, 5]
        assert children.keys() <= after.keys()


def test_a_url_that_is_added_again_under_another_name_is_called_so(store_url: str) -> None:
    with Web() as web, trial(documents, store=store_url) as app:
        Page(web, WHALES)
        url = web.url("/page")
        id_ = app.add(url=url, pipeline=documents, name="whales").id
        assert app.add(url=url, pipeline=documents).answer == "exists"
        assert (
            app.add(url=url, pipeline=documents, name="the sea").answer == "exists"
        )  # it has not been fetched
        assert app.status(id_).name == "the sea"
        drain(app)
        assert app.add(url=url, pipeline=documents).answer == "requeued"
        assert app.status(id_).name == "the sea", "nobody said otherwise"
        drain(app)
        assert app.add(url=url, pipeline=documents, name="deep").answer == "requeued"
        assert app.status(id_).name == "deep"

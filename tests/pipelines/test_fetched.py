"""Large content behind a URL: it goes straight to a blob, and nobody waits for it."""

from __future__ import annotations

import asyncio
import hashlib
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perdure import Transient
from perdure.core.events import StageSaved
from perdure.engine import content, runner, saving
from perdure.engine.codec import Codec
from perdure.engine.fetched import conditional, saved_raw
from perdure.pipelines.document import INLINE_BYTES_MAX, documents, extract, fetch
from perdure.settings import Settings
from perdure.store.blobs import BlobMissing
from perdure.store.blobs.base import hash_file
from perdure.testing import Trial, drain, failing, recording, tick, trial
from tests.calls.web import Hit, Web
from tests.pipelines.image.making import corners, stored
from tests.pipelines.test_again import Page
from tests.pipelines.test_routed import ALL

PIECE, PIECES = bytes(range(256)) * 4096, 48  # together 48 MiB of no known type
WORDS = b"<p>A paragraph about whales that sing in the sea, and of ships that listen.</p>"
LARGE = b"<html><body>" + WORDS * (2 * INLINE_BYTES_MAX // len(WORDS)) + b"</body></html>"
PICTURE = stored(corners(300, 200), "PNG") + bytes(2 * INLINE_BYTES_MAX)


@pytest.fixture(autouse=True)
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_ALLOW_LOOPBACK", "true")


def many_pieces(hit: Hit) -> None:
    hit.head(content_type="application/octet-stream", content_length=PIECES * len(PIECE))
    for _ in range(PIECES):
        hit.send(PIECE)


@contextmanager
def turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The processor time of each turn of an event loop meanwhile."""
    taken: list[float] = []
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        began_s = time.thread_time()
        run(handle)
        taken.append(time.thread_time() - began_s)

    with monkeypatch.context() as patched:
        patched.setattr(asyncio.Handle, "_run", timed)
        yield taken


def claims(app: Trial, id_: str) -> list[tuple[str, str, bool]]:
    return [(a.outcome, a.stage, a.charged) for a in app.attempts(id_) if "/" not in a.job_key]


def ran(app: Trial) -> list[str]:
    """The stages that ran while the app drained."""
    events = recording(app)
    drain(app)
    return [f"{event.pipeline}.{event.stage}" for event in events.of(StageSaved)]


@pytest.mark.on_both
def test_large_content_holds_no_loop(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Web() as web, trial(documents, store=store_url) as app:
        web.routes["/large"] = many_pieces
        id_ = app.add(url=web.url("/large"), pipeline=documents).id
        with turns(monkeypatch) as taken:
            drain(app)
        assert max(taken) < 0.1
        source = app.output(id_, "fetch")
        assert (source.content, source.size) == (None, PIECES * len(PIECE))
        assert source.blob == hashlib.sha256(PIECE * PIECES).hexdigest()
        assert app.status(id_).error_code == "type_unsupported"


def test_large_content_takes_little_memory(store_url: str) -> None:
    with Web() as web, trial(documents, store=store_url) as app:
        web.routes["/large"] = many_pieces
        id_ = app.add(url=web.url("/large"), pipeline=documents).id
        with failing(extract, Transient("not yet")):
            tracemalloc.start()
            try:
                drain(app)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
        assert peak < 16 << 20
        assert app.output(id_, "fetch").size == PIECES * len(PIECE)


@pytest.mark.on_both
def test_what_was_fetched_is_not_fetched_again_and_large_waits_among_large_ones(store_url: str) -> None:
    settings = Settings(allow_loopback=True, large_bytes=len(LARGE))
    with Web() as web, trial(documents, store=store_url, settings=settings, cells=True) as app:
        page = Page(web, LARGE)
        id_ = app.add(url=web.url("/page"), pipeline=documents).id
        drain(app)
        assert app.status(id_).state == "done", app.attempts(id_)
        assert claims(app, id_) == [("later", "extract", False), ("done", "index", True)]
        assert "among large documents" in app.attempts(id_)[0].why
        assert page.statuses == [200]
        assert app.output(id_, "extract").markdown.count("whales") == LARGE.count(b"whales")


def test_the_text_of_a_large_page_is_not_decoded_to_find_out_what_it_waits_for(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[tuple[str, int]] = []
    decode = Codec.decode

    def noted(codec: Codec, raw: bytes) -> object:
        decoded.append((codec.what, len(raw)))
        return decode(codec, raw)

    with Web() as web, trial(documents, store=store_url, cells=True) as app:
        Page(web, b"<html><body>" + WORDS * 5_000 + b"</body></html>")  # chunk reads it in a cell
        id_ = app.add(url=web.url("/page"), pipeline=documents).id
        monkeypatch.setattr(Codec, "decode", noted)
        drain(app)
        assert app.status(id_).state == "done"
        assert decoded
        assert [one for one in decoded if one[0] == extract.codec.what] == []


@pytest.mark.on_both
def test_a_failure_after_it_was_fetched_fetches_nothing_again(store_url: str) -> None:
    with Web() as web, trial(documents, store=store_url) as app:
        page = Page(web, LARGE)
        id_ = app.add(url=web.url("/page"), pipeline=documents).id
        with failing(extract, Transient("not yet")):
            tick(app)
        drain(app)
        assert [word for word, *_ in claims(app, id_)] == ["retry", "done"]
        assert page.statuses == [200]


@pytest.mark.on_both
def test_large_content_that_did_not_change_is_not_read_again(store_url: str) -> None:
    with Web() as web, trial(documents, store=store_url) as app:
        page, url = Page(web, LARGE), web.url("/page")
        id_ = app.add(url=url, pipeline=documents).id
        drain(app)
        before = app.output(id_, "fetch")
        app.add(url=url, pipeline=documents)
        assert ran(app) == ["document.fetch"]
        page.etag = None  # the server forgot what etags are
        app.add(url=url, pipeline=documents)
        assert ran(app) == ["document.fetch"]
        assert page.statuses == [200, 304, 200]
        assert app.output(id_, "fetch") == before
        page.content = LARGE.replace(b"whales", b"dolphins")
        app.add(url=url, pipeline=documents)
        assert "document.index" in ran(app)
        assert app.search("dolphins")


def test_content_that_is_lost_is_fetched_in_full(store_url: str) -> None:
    with Web() as web, trial(documents, store=store_url) as app:
        page, url = Page(web, LARGE), web.url("/page")
        id_ = app.add(url=url, pipeline=documents).id
        drain(app)
        app._call(app.service.blobs.delete(app.output(id_, "fetch").blob))
        app.add(url=url, pipeline=documents)
        drain(app)
        assert (app.status(id_).state, page.statuses) == ("done", [200, 200])
        assert app._call(app.service.blobs.exists(app.output(id_, "fetch").blob))


@pytest.mark.on_both
def test_a_large_image_goes_to_its_pipeline(store_url: str) -> None:
    with Web() as web, trial(ALL, store=store_url, cells=True) as app:
        page, url = Page(web, PICTURE), web.url("/page")
        id_ = app.add(url=url, pipeline="document").id
        drain(app)
        assert (app.status(id_).state, len(app.rows(id_, "variants"))) == ("done", 6)
        app.add(url=url, pipeline="document")
        assert "image.look" not in ran(app)
        assert page.statuses == [200, 304]


def test_what_an_older_version_saved_is_fetched_again_and_never_decoded_if_it_is_large(
    store_url: str,
) -> None:
    """Version 1 saved all content in the output."""
    with Web() as web, trial(documents, store=store_url) as app:
        Page(web, LARGE)
        id_ = app.add(url=web.url("/page"), pipeline=documents).id
        drain(app)
        org = app.status(id_).org
        save = next(s for s in app._call(app.service.store.saves(org, id_, "document")) if s.stage == "fetch")
        assert fetch.version == 2
        assert app._call(conditional(save, fetch, app.service.blobs))
        assert not app._call(conditional(replace(save, inline=None), fetch, app.service.blobs))
    old = b'{"name":"a","media_type":"","url":"u","etag":"e","last_modified":null,"content":"YWI=","route":null}'
    assert fetch.codec.decode(old).content == b"ab"


def fetched_file(app: Trial, id_: str) -> Path:
    path = app._call(app.service.blobs.path(app.output(id_, "fetch").blob))
    assert isinstance(path, Path)
    return path


def damage(path: Path) -> None:
    path.chmod(0o600)
    path.write_bytes(b"<html><body>" + b"x" * 10)


def test_content_that_is_never_readable_is_fetched_once_in_an_attempt(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def missing(blob: str, *_: object) -> Path:
        raise BlobMissing(f"no {blob}")

    monkeypatch.setattr(content, "local", missing)
    with Web() as web, trial(documents, store=store_url) as app:
        page = Page(web, LARGE)
        id_ = app.add(url=web.url("/page"), pipeline=documents).id
        drain(app)
        assert app.status(id_).error_code == "output_lost"
        assert len(page.statuses) == app.status(id_).attempts_made == 3


def test_a_page_that_is_fetched_again_in_a_claim_replaces_the_file_of_the_first(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fetched blob is lost while later stages run, and the page has changed."""
    with Web() as web, trial(documents, store=store_url) as app:
        page = Page(web, LARGE)
        id_ = app.add(url=web.url("/page"), pipeline=documents).id
        with failing(extract, Transient("not yet")):
            tick(app)
        page.content, page.etag = LARGE.replace(b"whales", b"dolphins"), '"2"'
        lost, seen = saving.lost, list[bool]()

        async def lost_once(*about: Any) -> list[str]:
            seen.append(True)
            return ["fetch"] if len(seen) == 1 else await lost(*about)

        monkeypatch.setattr(saving, "lost", lost_once)
        drain(app)
        assert app.status(id_).state == "done"
        assert page.statuses == [200, 200]
        assert "dolphins" in app.chunks(id_)[0].text


def test_an_unreadable_output_of_the_fetch_is_made_again_and_charges_nothing(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Web() as web, trial(documents, store=store_url) as app:
        page = Page(web, LARGE)
        id_ = app.add(url=web.url("/page"), pipeline=documents).id
        with failing(extract, Transient("not yet")):
            tick(app)
        read, seen = saved_raw, list[bool]()

        async def broken_once(save: Any, blobs: Any) -> bytes | None:
            if save.stage == "fetch" and not seen:
                seen.append(True)
                return b'{"broken":1}'
            return await read(save, blobs)

        monkeypatch.setattr(runner, "saved_raw", broken_once)
        drain(app)
        assert [word for word, *_ in claims(app, id_)] == ["retry", "done"]
        assert page.statuses == [200, 200]


def test_damaged_content_is_noticed_and_fetched_again() -> None:
    """In a directory, where a file is read as it is."""
    with Web() as web, trial(documents) as app:
        page, url = Page(web, LARGE), web.url("/page")
        id_ = app.add(url=url, pipeline=documents).id
        with failing(extract, Transient("not yet")):
            tick(app)
        damage(fetched_file(app, id_))
        drain(app)
        assert (app.status(id_).state, page.statuses) == ("done", [200, 200])
        assert "whales" in app.chunks(id_)[0].text
        damage(fetched_file(app, id_))
        app.add(url=url, pipeline=documents)
        drain(app)
        assert (app.status(id_).state, page.statuses) == ("done", [200, 200, 200])
        assert hash_file(fetched_file(app, id_))[0] == app.output(id_, "fetch").blob

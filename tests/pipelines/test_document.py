"""The document pipeline from end to end, in real cells, against a real server on loopback."""

from __future__ import annotations

from base64 import b64encode

import pytest
from pydantic_core import to_json

from perdure.engine.codec import OUTPUT_BYTES_MAX
from perdure.pipelines.document import FETCH_BYTES_MAX, Source, documents
from perdure.testing import drain, trial
from tests.calls.web import Web

PAGE = b"""<!doctype html><html lang="en"><head><title>On queues</title></head><body><nav>Home</nav><article>
<h1>On queues</h1><p>A queue that loses nothing is worth more than one that is quick, and this is a long enough
sentence for an article.</p><h2>Leases</h2><p>Whoever holds a lease may write, and nobody else may do so meanwhile.</p>
</article></body></html>"""


@pytest.fixture(autouse=True)
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_ALLOW_LOOPBACK", "true")


@pytest.mark.on_both
def test_a_page_is_fetched_and_read(store_url: str) -> None:
    with Web() as web, trial(documents, store=store_url, cells=True) as app:
        web.page("/queues.html", PAGE, content_type="text/html", etag='"1"')
        id_ = app.add(url=web.url("/queues.html"), pipeline=documents).id
        assert drain(app).done == 1
        extracted = app.output(id_, "extract")
        assert "loses nothing" in extracted.markdown
        assert extracted.summary.title == "On queues"
        assert app.output(id_, "fetch").etag == '"1"'
        (attempt,) = [a for a in app.attempts(id_) if "/" not in a.job_key]
        assert attempt.requests == {"fetch": 1}
        (hit, *_) = app.search("lease write")
        assert (hit.document_id, "lease" in hit.snippet) == (id_, True)


@pytest.mark.on_both
def test_a_text_and_a_file_go_the_same_way(store_url: str) -> None:
    with trial(documents, store=store_url, cells=True) as app:
        ids = [
            app.add(text="# A note\n\nIt was a dark night.", pipeline=documents).id,
            app.add(data=PAGE, name="page.html", pipeline=documents).id,
        ]
        assert drain(app).done == 2
        assert [app.output(id_, "extract").summary.title for id_ in ids] == ["A note", "On queues"]


def test_its_content_says_what_it_is_and_not_its_name(store_url: str) -> None:
    with trial(documents, store=store_url, cells=True) as app:
        ids = [
            app.add(data=PAGE, name="queues.pdf", pipeline=documents).id,
            app.add(text="# A note\n\nIt was a dark night.", name="note.docx", pipeline=documents).id,
        ]
        said = app.add(data=PAGE + b" ", name="q", media_type="application/pdf", pipeline=documents).id
        assert drain(app).done == 2
        assert [app.output(id_, "extract").summary.title for id_ in ids] == ["On queues", "A note"]
        assert app.status(said).error_code == "type_mismatch"


def test_whatever_is_fetched_can_be_saved() -> None:
    rest = Source("n" * 8_000, "t" * 300, "u" * 8_000, "e" * 1_000, "l" * 1_000, b"")
    assert len(b64encode(bytes(3_000))) * FETCH_BYTES_MAX // 3_000 + len(to_json(rest)) < OUTPUT_BYTES_MAX


@pytest.mark.parametrize(
    ("path", "code", "attempts", "requests"),
    [("/gone", "http_404", 1, 1), ("/broken", "http_500", 3, 3), ("/garbage.pdf", "document_corrupt", 1, 1)],
)
def test_what_cannot_be_had_is_dead_with_its_reason(
    store_url: str, path: str, code: str, attempts: int, requests: int
) -> None:
    with Web() as web, trial(documents, store=store_url, cells=True) as app:
        web.page("/broken", b"oops", 500)
        web.page("/garbage.pdf", b"%PDF-1.7\nnothing of the kind", content_type="application/pdf")
        id_ = app.add(url=web.url(path), pipeline=documents).id
        assert drain(app).dead == 1
        made = app.attempts(id_)
        assert (made[-1].error_code, len(made)) == (code, attempts)
        assert len(web.paths) == requests


def test_a_name_that_leads_nowhere_is_dead_after_three_attempts(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perdure.calls import fetch

    async def unknown(host: str, port: int) -> list[str]:
        raise OSError("no such name")

    monkeypatch.setattr(
        fetch.fetch, "__kwdefaults__", {**(fetch.fetch.__kwdefaults__ or {}), "resolve": unknown}
    )
    with trial(documents, store=store_url) as app:
        id_ = app.add(url="http://nowhere.test/", pipeline=documents).id
        assert drain(app).dead == 1
        made = app.attempts(id_)
        assert [a.delay_ms for a in made] == [2_000, 4_000, None]
        assert made[-1].error_code == "dns_failed"

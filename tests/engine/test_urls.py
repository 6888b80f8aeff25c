"""URLs at the door: refused there if they lead where nobody may go, the same one in every spelling, else a document."""

from __future__ import annotations

import pytest

from perdure import Document, Pipeline
from perdure.errors import InputInvalid
from perdure.testing import drain, trial

pages = Pipeline("pages")


@pages.stage
def where(doc: Document) -> str | None:
    return doc.url


def test_a_url_is_a_document_of_its_own(store_url: str) -> None:
    with trial(pages, store=store_url) as app:
        added = app.add(url="HTTPS://Example.com:443/a b".replace(" ", "%20"), pipeline=pages)
        assert drain(app).done == 1
        assert app.output(added.id, "where") == "https://example.com/a%20b"
        assert app.add(url="https://example.com/a%20b", pipeline=pages).id == added.id
        text = app.add(text="https://example.com/a%20b", pipeline=pages)  # a text is not a URL
        assert text.answer == "added"
        drain(app)
        assert app.output(text.id, "where") is None


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("http://127.0.0.1/", "address_forbidden"),
        ("http://2130706433/", "address_forbidden"),
        ("http://[::ffff:169.254.169.254]/", "address_forbidden"),
        ("file:///etc/passwd", "scheme_forbidden"),
        ("not a url", "url_invalid"),
    ],
)
def test_what_may_not_be_fetched_is_refused_at_the_door(store_url: str, url: str, code: str) -> None:
    with trial(pages, store=store_url) as app:
        with pytest.raises(InputInvalid) as refused:
            app.add(url=url, pipeline=pages)
        assert refused.value.code == code
        assert app.documents() == []

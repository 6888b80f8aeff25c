"""Images and archives of mail behind a URL: fetched, told by their content, and processed by their own pipelines."""

from __future__ import annotations

import pytest
from PIL import Image

from perdure import Permanent
from perdure.core.events import StageSaved
from perdure.pipelines.document import documents
from perdure.pipelines.image.metadata import FALLBACK
from perdure.pipelines.image.pipeline import generate_variants, images
from perdure.pipelines.mail.pipeline import mails
from perdure.pipelines.routing import routed
from perdure.testing import Trial, drain, failing, recording, trial
from tests.calls.web import Web
from tests.pipelines.image.making import corners, stored
from tests.pipelines.mail.boxes import letter, mbox
from tests.pipelines.test_again import WHALES, Page

ALL = [documents, images, mails]
PICTURE = stored(corners(300, 200), "PNG")
OTHER = stored(corners(200, 300), "PNG")


@pytest.fixture(autouse=True)
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_ALLOW_LOOPBACK", "true")


def stages(app: Trial) -> list[tuple[str, str]]:
    """The stages that ran while the app drained."""
    events = recording(app)
    drain(app)
    return [(event.pipeline, event.stage) for event in events.of(StageSaved)]


def test_an_image_behind_a_url_has_variants_and_metadata_under_its_id(store_url: str) -> None:
    with Web() as web, trial(ALL, store=store_url) as app:
        page = Page(web, PICTURE)
        id_ = app.add(url=web.url("/page"), pipeline="document").id
        drain(app)
        status = app.status(id_)
        assert (status.state, status.degraded, status.error_code) == ("done", True, None)
        assert len(app.rows(id_, "variants")) == 6
        ((_, data),) = app.rows(id_, "metadata")
        assert (data.pop("degraded"), data.pop("model"), data) == (True, "", FALLBACK.record())
        ((_, facts),) = app.rows(id_, "facts")
        assert (facts["width"], facts["height"]) == (300, 200)
        assert [hit.document_id for hit in app.search("unprocessed")] == [id_]
        assert page.statuses == [200]


def test_an_image_behind_a_url_stays_in_the_collection_that_it_was_added_with(store_url: str) -> None:
    with Web() as web, trial(ALL, store=store_url) as app:
        Page(web, PICTURE)
        web.routes["/other"] = lambda hit: hit.answer(200, OTHER, content_type="image/png")
        kept = app.add(url=web.url("/page"), pipeline="document").id
        named = app.add(url=web.url("/other"), pipeline="document", collection="images").id
        drain(app)
        assert [one.id for one in app.documents(collection="documents", state="done")] == [kept]
        assert [one.id for one in app.documents(collection="images", state="done")] == [named]
        assert all(len(app.rows(id_, "variants")) == 6 for id_ in (kept, named))


def test_an_image_that_did_not_change_is_not_looked_at_again(store_url: str) -> None:
    with Web() as web, trial(ALL, store=store_url) as app:
        page, url = Page(web, PICTURE), web.url("/page")
        id_ = app.add(url=url, pipeline="document").id
        drain(app)
        variants = app.rows(id_, "variants")
        again = app.add(url=url, pipeline="document")
        assert (again.id, again.answer) == (id_, "requeued")
        assert ("image", "look") not in stages(app)
        assert page.statuses == [200, 304]
        assert (app.status(id_).state, app.rows(id_, "variants")) == ("done", variants)
        page.content, page.etag = OTHER, '"2"'
        app.add(url=url, pipeline="document")
        assert ("image", "look") in stages(app)
        assert app.rows(id_, "facts")[0][1]["width"] == 200


def test_a_page_that_becomes_an_image_is_found_as_one(store_url: str) -> None:
    with Web() as web, trial(ALL, store=store_url) as app:
        page, url = Page(web, WHALES), web.url("/page")
        id_ = app.add(url=url, pipeline="document").id
        drain(app)
        assert app.search("whales")
        page.content, page.etag = PICTURE, '"2"'
        app.add(url=url, pipeline="document")
        drain(app)
        assert (app.status(id_).state, app.search('"whales"')) == ("done", [])
        assert [chunk.text.startswith("unprocessed") for chunk in app.chunks(id_)] == [True]


def test_a_job_of_the_image_that_failed_fails_the_document_until_it_is_requeued(store_url: str) -> None:
    with Web() as web, trial(ALL, store=store_url) as app:
        page = Page(web, PICTURE)
        with failing(generate_variants.stages[0], Permanent("full", "no room")):
            id_ = app.add(url=web.url("/page"), pipeline="document").id
            drain(app)
        status = app.status(id_)
        assert (status.state, status.error_code) == ("dead", "routed_failed")
        assert app.requeue(id_) == "requeued"
        drain(app)
        assert (app.status(id_).state, len(app.rows(id_, "variants"))) == ("done", 6)
        assert page.statuses == [200]


def test_an_archive_behind_a_url_becomes_messages_and_threads(store_url: str) -> None:
    box = mbox(letter("ann"), letter("ben", refers=["ann"]))
    with Web() as web, trial(ALL, store=store_url) as app:
        page, url = Page(web, box), web.url("/page")
        id_ = app.add(url=url, pipeline="document").id
        drain(app)
        assert app.status(id_).state == "done", app.attempts(id_)
        found = {one.collection for one in app.documents() if one.id != id_}
        assert found == {"messages", "threads"}
        assert app.rows(id_, "archive")[0][1]["messages"] == 2
        page.content, page.etag = mbox(letter("ann"), letter("ben", refers=["ann"]), letter("cleo")), '"2"'
        app.add(url=url, pipeline="document")
        drain(app)
        assert app.rows(id_, "archive")[0][1]["messages"] == 3
        assert sum(one.collection == "messages" for one in app.documents()) == 3


def test_a_message_is_mail_by_its_headers(store_url: str) -> None:
    with trial(ALL, store=store_url) as app:
        data = letter("ann", "The fog was thick.")
        name, found = routed({"data": data, "name": "ann.eml"}, [one.name for one in ALL])
        id_ = app.add(pipeline=name, data=data, name="ann.eml", **found).id
        drain(app)
        assert app.status(id_).pipeline == "mail"
        assert app.rows(id_, "archive")[0][1]["messages"] == 1
        assert app.search("thick fog")


def test_an_app_without_the_pipeline_says_that_it_does_not_read_images() -> None:
    with Web() as web, trial([documents]) as app:
        Page(web, PICTURE)
        id_ = app.add(url=web.url("/page"), pipeline="document").id
        drain(app)
        assert (app.status(id_).state, app.status(id_).error_code) == ("dead", "type_unsupported")


def test_a_large_image_is_worked_on_in_a_cell_from_a_file(store_url: str) -> None:
    big = stored(Image.effect_noise((900, 700), 80).convert("RGB"), "PNG")
    with Web() as web, trial(ALL, store=store_url, cells=True) as app:
        Page(web, big)
        id_ = app.add(url=web.url("/page"), pipeline="document").id
        drain(app)
        assert (app.status(id_).state, len(app.rows(id_, "variants"))) == ("done", 6)

"""The image pipeline from end to end: facts, a description or what stands for it, variants, a chunk to be found by."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image

from perdure.calls import Dependency, Limiter, Policy, Timing
from perdure.pipelines.image import describe as module
from perdure.pipelines.image.describe import ASKS_MAX
from perdure.pipelines.image.metadata import FALLBACK
from perdure.pipelines.image.pipeline import generate_variants, images
from perdure.testing import Trial, drain, failing, tick, trial
from tests.calls.openai_server import Fault, OpenAIServer
from tests.pipelines.image.making import corners, stored
from tests.pipelines.image.test_describe import SEEN, said

JOBS = {"generate-metadata", "generate-variants", "generate-embeddings"}


class Calm(Limiter):
    """Sets no limit: the waits of a trial are no time for a policy."""

    __slots__ = ()

    def failed(self, now_s: float) -> None:
        return


async def at_once(_: float) -> None:
    return


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    policy = Policy(
        "vision", retries=3, dependency=Dependency("vision", limiter=Calm()), timing=Timing(asleep=at_once)
    )
    monkeypatch.setattr(module, "policy", lambda google=False: policy)
    with OpenAIServer() as server:
        monkeypatch.setenv("PERDURE_VISION_URL", server.url)
        yield server


def picture(number: int = 0) -> bytes:
    image = corners(64 + number, 40)
    return stored(image, "JPEG", quality=95)


def back(app: Trial, server: OpenAIServer) -> None:
    """The service answers, and an operator says so; a fleet would tell the policy."""
    server.always = said(SEEN)
    app.release("vision")
    module.policy().dependency.breaker.reset(time.monotonic())


def metadata(app: Trial, id_: str) -> dict[str, Any]:
    ((_, data),) = app.rows(id_, "metadata")
    return dict(data)


def test_an_image_is_described_made_smaller_and_found(store_url: str, server: OpenAIServer) -> None:
    server.always = said(SEEN)
    with trial(images, store=store_url) as app:
        id_ = app.add(data=picture(), name="fields.jpg", pipeline=images).id
        assert drain(app).done == 1
        status = app.status(id_)
        assert (status.state, status.degraded) == ("done", False)
        assert set(app.output(id_, "complete")) == JOBS
        assert metadata(app, id_)["description"] == "Four coloured fields"
        assert {(k["name"], k["format"]) for k, _ in app.rows(id_, "variants")} == {
            (n, f) for n in ("thumbnail", "medium", "large") for f in ("webp", "avif")
        }
        made = app.output(id_, "make", pipeline="generate-variants")
        assert {Image.open(io.BytesIO(one.content)).format for one in made} == {"WEBP", "AVIF"}
        ((_, known),) = app.rows(id_, "facts")
        assert (known["width"], known["height"], known["orientation"]) == (64, 40, "landscape")
        assert [hit.document_id for hit in app.search("four fields")] == [id_]
        assert len(server.requests) == 1


def test_a_service_that_refuses_us_degrades_at_once(store_url: str, server: OpenAIServer) -> None:
    server.always = Fault(status=401)
    with trial(images, store=store_url) as app:
        id_ = app.add(data=picture(), pipeline=images).id
        drain(app)
        assert (app.status(id_).state, app.status(id_).degraded) == ("done", True)
        assert len(server.requests) == 2  # the image, and the job that would have repaired it
        refused = [one for one in app.attempts(id_) if one.error_code is not None]
        assert [(one.error_code, one.outcome) for one in refused] == [
            ("call_unauthorized", "dead")
        ]  # the repair


def test_a_service_that_answers_nonsense_is_asked_again_once(store_url: str, server: OpenAIServer) -> None:
    server.always = said("I cannot help with that.")
    with trial(images, store=store_url) as app:
        id_ = app.add(data=picture(), pipeline=images).id
        for _ in range(100):
            app.clock.advance(60)
            drain(app)
        assert (app.status(id_).state, app.status(id_).degraded) == ("done", True)
        assert len(server.requests) == 2 * ASKS_MAX  # the image, and the job that would have repaired it


def test_without_a_service_it_is_done_and_degraded_and_repaired_later(
    store_url: str, server: OpenAIServer
) -> None:
    """The service is away for the whole run; when it is back every description is asked for once, and only once."""
    server.always = Fault(status=503)
    with trial(images, store=store_url, concurrency=5) as app:
        ids = [app.add(data=picture(n), pipeline=images).id for n in range(6)]
        summary = drain(app)
        assert (summary.done, summary.dead, summary.held) == (6, 0, 6)
        assert all(app.status(id_).degraded for id_ in ids)
        pending = json.loads(json.dumps(FALLBACK.record()))
        for id_ in ids:
            kept = metadata(app, id_)
            assert kept.pop("degraded")
            assert kept.pop("model") == ""
            assert kept == pending
        assert all(app.search("unprocessed", document=id_) for id_ in ids)
        asked = len(server.requests)
        back(app, server)
        drain(app)
        assert len(server.requests) - asked == 6
        assert not any(app.status(id_).degraded for id_ in ids)
        assert [metadata(app, id_)["description"] for id_ in ids] == ["Four coloured fields"] * 6
        assert all(app.search("four coloured fields", document=id_) for id_ in ids)
        assert not any("unprocessed" in hit.snippet for hit in app.search("unprocessed"))
        drain(app)
        assert len(server.requests) - asked == 6


def test_it_probes_by_itself_when_nobody_releases_it(store_url: str, server: OpenAIServer) -> None:
    server.always = Fault(status=503)
    with trial(images, store=store_url) as app:
        ids = [app.add(data=picture(n), pipeline=images).id for n in range(3)]
        drain(app)
        server.always = said(SEEN)
        for _ in range(200):
            app.clock.advance(1)
            drain(app)
            if not any(app.status(id_).degraded for id_ in ids):
                break
        assert not any(app.status(id_).degraded for id_ in ids)


def test_one_that_was_never_configured_says_so_and_is_repaired_when_it_is(
    store_url: str, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PERDURE_VISION_URL")
    server.always = said(SEEN)
    with trial(images, store=store_url) as app:
        id_ = app.add(data=picture(), pipeline=images).id
        assert drain(app).done == 1
        (vision,) = [d for d in app.dependencies() if d.name == "vision"]
        assert (vision.state, "PERDURE_VISION_URL" in (vision.reason or "")) == ("down", True)
        monkeypatch.setenv("PERDURE_VISION_URL", server.url)
        app.release("vision")
        drain(app)
        assert (app.status(id_).degraded, metadata(app, id_)["degraded"]) == (False, False)


def test_what_is_no_image_is_dead_with_its_reason(store_url: str, server: OpenAIServer) -> None:
    server.always = said(SEEN)
    with trial(images, store=store_url) as app:
        bad = {"image_truncated": picture()[:900], "type_mismatch": b"<html><body>no</body></html>"}
        ids = [app.add(data=data, name="a.jpg", pipeline=images).id for data in bad.values()]
        good = app.add(data=picture(9), pipeline=images).id
        summary = drain(app)
        assert (summary.done, summary.dead) == (1, 2)
        assert {app.status(id_).error_code for id_ in ids} <= {*bad, "type_unsupported"}
        assert app.status(good).state == "done"
        assert len(server.requests) == 1


def test_a_job_that_fails_keeps_the_image_from_being_done(store_url: str, server: OpenAIServer) -> None:
    server.always = said(SEEN)
    with trial(images, store=store_url) as app:
        id_ = app.add(data=picture(), pipeline=images).id
        with failing(generate_variants.stages[0], *[RuntimeError("no")] * 3):
            assert drain(app).dead == 1
        status = app.status(id_)
        assert (status.state, status.error_code) == ("dead", "image_incomplete")
        assert "generate-variants" in (status.error_message or "")
        assert app.requeue(id_) == "requeued"
        assert drain(app).done == 1
        assert len(app.rows(id_, "variants")) == 6
        assert len(server.requests) == 1  # what went well is not asked for again


def test_one_that_was_cancelled_is_whole_when_it_is_requeued(store_url: str, server: OpenAIServer) -> None:
    server.always = said(SEEN)
    with trial(images, store=store_url, concurrency=1) as app:
        id_ = app.add(data=picture(), pipeline=images).id
        assert tick(app) == 1  # its jobs wait
        assert app.cancel(id_) == "cancelled"
        assert app.requeue(id_) == "requeued"
        assert drain(app).done == 1
        assert len(app.rows(id_, "variants")) == 6
        assert metadata(app, id_)["description"] == "Four coloured fields"


@pytest.mark.full
def test_what_could_not_be_repaired_is_asked_for_again_when_the_image_is_requeued(
    store_url: str, server: OpenAIServer
) -> None:
    server.always = said({"tags": []})
    with trial(images, store=store_url) as app:
        id_ = app.add(data=picture(), pipeline=images).id
        assert drain(app).done == 1
        repairs = [a.outcome for a in app.attempts(id_) if "/repair-" in a.job_key]
        assert [word for word in repairs if word != "gather"] == ["dead"]  # nonsense is not asked for again
        assert len(server.requests) == 4
        assert app.status(id_).degraded
        app.requeue(id_)
        drain(app)
        assert (app.status(id_).state, app.status(id_).degraded) == ("done", True)
        server.always = said(SEEN)
        for _ in range(2):
            app.requeue(id_)
            drain(app)
            assert (app.status(id_).state, app.status(id_).degraded) == ("done", False)
            assert metadata(app, id_)["description"] == "Four coloured fields"
            server.always = Fault(status=500)  # nobody is asked any more


def test_an_image_that_is_requeued_before_it_is_repaired_stays_degraded_until_it_is(
    store_url: str, server: OpenAIServer
) -> None:
    server.always = Fault(status=503)
    with trial(images, store=store_url) as app:
        id_ = app.add(data=picture(), pipeline=images).id
        drain(app)
        app.requeue(id_)
        drain(app)
        assert (app.status(id_).state, app.status(id_).degraded) == ("done", True)
        asked = len(server.requests)
        back(app, server)
        drain(app)
        assert (app.status(id_).state, app.status(id_).degraded) == ("done", False)
        assert metadata(app, id_)["description"] == "Four coloured fields"
        assert len(server.requests) - asked == 1

"""An app that was made with settings has its stages go by these, wherever they run, and no other app's."""

from __future__ import annotations

import os

import pytest

from perdure import Document, Perdure, Pipeline
from perdure.errors import SettingInvalid
from perdure.pipelines import embed
from perdure.pipelines.document import documents
from perdure.pipelines.mail.pipeline import mails
from perdure.settings import Settings, current
from perdure.testing import drain, trial
from tests.calls.openai_server import OpenAIServer

places = Pipeline("places", attempts=lambda: current().retry_job_max_attempts_chunks)


@places.stage
async def in_the_loop(doc: Document) -> str:
    return current().embed_model


@places.stage
def in_a_thread(doc: Document) -> str:
    return current().embed_model


@places.stage(isolate=True, model=lambda: current().embed_model)
def in_a_cell(doc: Document) -> tuple[str, int]:
    return current().embed_model, os.getpid()


def test_stages_see_them_in_the_loop_in_threads_and_in_cells(tmp_path: object) -> None:
    with Perdure(
        f"sqlite:///{tmp_path}/a.db", pipelines=[places], settings=Settings(embed_model="ours")
    ) as app:
        id_ = app.add(text="a", pipeline=places).id
        assert app.run_until_idle().done == 1
        assert app.output(id_, "in_the_loop") == app.output(id_, "in_a_thread") == "ours"
        model, pid = app.output(id_, "in_a_cell")
        assert (model, pid == os.getpid()) == ("ours", False)
    assert current().embed_model != "ours"


def test_two_apps_of_one_process_embed_with_what_each_was_given(store_url: str) -> None:
    with OpenAIServer() as server:
        away = Settings(embedder=server.url, embed_model="far")
        with (
            trial(documents, store=store_url, settings=away) as far,
            trial(documents, settings=Settings(embedder="hashing")) as near,
        ):
            ids = [app.add(text="Whales sing.", pipeline=documents).id for app in (far, near)]
            assert (drain(far).done, drain(near).done) == (1, 1)
            assert far.output(ids[0], "embed").model == "far"
            assert near.output(ids[1], "embed").model == "lexical-hashing-384"


def test_documents_wait_for_the_service_that_their_app_names(store_url: str) -> None:
    with (
        trial(documents, store=store_url, settings=Settings(embedder="http://127.0.0.1:9")) as far,
        trial(documents, settings=Settings(embedder="hashing")) as near,
    ):
        for app in (far, near):
            app.hold("openai", "maintenance", new=app is near)
            app.add(text="Whales sing.", pipeline=documents)
        assert (drain(far).held, drain(near).done) == (1, 1)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("embedder", "foo", "must be auto, minilm, wordllama, hashing or a URL"),
        ("embedder", "", "must be auto, minilm, wordllama, hashing or a URL"),
        ("embedder", "https:///v1", "must be auto, minilm, wordllama, hashing or a URL"),
        ("vision_url", "host.example/v1", "must be a URL"),
        ("summary_url", "http://", "must be a URL"),
    ],
)
def test_services_are_checked_when_settings_are_read(name: str, value: str, allowed: str) -> None:
    with pytest.raises(SettingInvalid, match=f"PERDURE_{name.upper()} is '{value}': {allowed}"):
        Settings(**{name: value})


def test_nothing_is_claimed_while_a_setting_that_stages_read_late_is_invalid(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Perdure(store_url, pipelines=[documents], settings=Settings(embedder="wordllama")) as app:
        id_ = app.add(text="Whales sing.", pipeline=documents).id
        monkeypatch.setenv("OPENAI_RETRY_MAX", "many")
        with pytest.raises(SettingInvalid, match="OPENAI_RETRY_MAX is 'many'; it must be a whole number"):
            app.run_until_idle()
        monkeypatch.delenv("OPENAI_RETRY_MAX")
        monkeypatch.setattr(embed, "find_spec", lambda _: None)
        with pytest.raises(SettingInvalid, match="wordllama, which is not installed"):
            app.run_until_idle()
        assert (app.status(id_).state, app.attempts(id_)) == ("queued", [])


@pytest.mark.parametrize("attempts", [1, 4])
def test_budgets_follow_them(attempts: int) -> None:
    settings = Settings(retry_job_max_attempts_archives=attempts, retry_job_max_attempts_chunks=attempts + 1)
    with trial([mails, places], settings=settings) as app:
        archive = app.add(data=b"no mail", name="a.mbox", pipeline=mails).id
        place = app.add(text="a", pipeline=places).id
        assert app.status(archive).attempts_max == attempts
        assert app.status(place).attempts_max == attempts + 1

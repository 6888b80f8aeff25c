"""What services say is taken as it was meant, as long as it says whom it means."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from perdure import Pipeline
from perdure.settings import Settings
from perdure.testing import tick, trial
from perdure.watch.broker import Broker
from perdure.watch.listener import Listener

asked = Pipeline("asked")
asked.remote_stage("parse", event="Asked", done="Told", failed="NotTold")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        ({"code": "parse_failed", "message": "line 3"}, "parse_failed", "line 3"),
        ({"code": "parse_failed"}, "parse_failed", "parse_failed"),
        ({"message": "line 3"}, "remote_failed", "line 3"),
        ({"code": "Not a word!", "message": "line 3"}, "remote_failed", "Not a word!: line 3"),
        ({"code": "Not a word!"}, "remote_failed", "Not a word!"),
        ({"code": 503, "message": ["busy"]}, "503", "['busy']"),
        ("it broke", "remote_failed", "it broke"),
        (None, "remote_failed", "remote_failed"),
    ],
)
def test_a_failure_counts_at_once_however_it_is_put(error: Any, code: str, message: str) -> None:
    with trial(asked) as app:
        id_ = app.add(text="a", pipeline=asked).id
        tick(app)
        (event,) = app._call(app.service.store.outbox(1))
        said = {"document_id": id_, "token": str(event.token), "error": error, "retryable": False}
        heard: Any = SimpleNamespace(app_id=None, routing_key="NotTold", body=json.dumps(said).encode())
        listener = Listener(Broker(Settings()), app.service.answers)
        app._call(listener._act(asked, heard))
        status = app.status(id_)
        assert (status.state, status.error_code, status.error_message) == ("dead", code, message)

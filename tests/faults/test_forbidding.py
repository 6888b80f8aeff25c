"""A service that is down and asks not to be tried again ends each call, and no document."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.calls.openai_server import Fault, OpenAIServer
from tests.faults.fleet import Fleet
from tests.faults.forbidding import SERVICE_VARIABLE, books

DOCUMENTS, OUTAGE_S = 50, 2.0


@pytest.mark.parametrize("status", [503, pytest.param(429, marks=pytest.mark.full)])
def test_an_outage_that_forbids_retries_kills_no_document(
    store_url: str, tmp_path: Path, status: int
) -> None:
    with (
        OpenAIServer() as server,
        Fleet(store_url, tmp_path, server_old=False, pipelines=[books]) as fleet,
    ):
        server.always = Fault(status, {"x-should-retry": "false"})
        ids = [fleet.ask(fleet.app.add(text=str(n), pipeline=books)).id for n in range(DOCUMENTS)]
        knobs = {"PERDURE_DEPENDENCY_OPENAI_PROBE_S": "0.5", "PERDURE_DEPENDENCY_OPENAI_PROBE_MAX_S": "1"}
        service: dict[str, Any] = {SERVICE_VARIABLE: server.url, **knobs}
        for _ in range(2):
            fleet.start("tests.faults.forbidding:app", concurrency=6, **service)
        fleet.wait(lambda: len(server.requests) > 10, "the outage to be felt")
        time.sleep(OUTAGE_S)
        assert dict(fleet.tally().documents) == {"open": DOCUMENTS}
        state = fleet.ask(fleet.app.store.dependencies())
        assert [one.name for one in state] == ["openai"]
        assert (state[0].held_by is not None) == (status == 503)

        server.always = Fault()
        fleet.wait(lambda: fleet.tally().documents.get("done") == DOCUMENTS, "all to be done", 60)
        attempts = [attempt for id_ in ids for attempt in fleet.ask(fleet.app.attempts(id_))]
        assert Counter(attempt.outcome for attempt in attempts if attempt.charged) == {"done": DOCUMENTS}
        assert {n for attempt in attempts for n in attempt.requests.values()} == {1}
        assert sum(n for attempt in attempts for n in attempt.requests.values()) == len(server.requests)

"""The timeline of a document that was requeued very often."""

from __future__ import annotations

import time

from perdure.core.model import job_key
from perdure.operate.situation import Situation
from perdure.operate.timeline import Story, tell
from perdure.store.inspecting import SaveRecord
from perdure.store.records import Act, Attempt, DocumentRecord, Status
from perdure.testing import Trial, drain, trial
from tests.operate.test_timeline import pages


def known() -> tuple[Status, DocumentRecord]:
    with trial(pages) as app:
        id_ = app.add(text="a", pipeline=pages).id
        drain(app)
        return app.status(id_), document_of(app, id_)


def document_of(app: Trial, id_: str) -> DocumentRecord:
    found = app._call(app.service.store.document(app.status(id_).org, id_))
    assert found is not None
    return found


def long_story(status: Status, document: DocumentRecord, generations: int) -> Story:
    numbers = range(1, generations + 1)
    attempts = [
        Attempt(
            status.id, job_key(status.id), g, 1, 1, True, "keep", 1, g * 10_000, g * 10_000 + 2_000, "done", None, None,
            None, None, None, None, "",
        )
        for g in numbers
    ]  # fmt: skip
    saves = [SaveRecord("pages", "keep", g, 1, None, g * 10_000 + 1_000, 5, 10, False) for g in numbers]
    acts = [
        Act(g, g * 10_000 - 5_000, "ann", "requeue", status.org, status.id, "") for g in reversed(numbers[1:])
    ]
    return Story(
        Situation(generations * 20_000, status, attempts=tuple(attempts), acts=tuple(acts)),
        document,
        tuple(saves),
    )


def taken_s(told: Story) -> float:
    began_s = time.thread_time()
    tell(told)
    return time.thread_time() - began_s


def test_eight_times_the_history_takes_about_eight_times_as_long() -> None:
    status, document = known()
    few, many = (long_story(status, document, generations) for generations in (1_000, 8_000))
    assert min(taken_s(many) for _ in range(3)) < 20 * min(taken_s(few) for _ in range(3))

"""Every verb that changes something leaves an act with who, when and why; the table of verbs says which these are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import Document, Permanent, Pipeline
from perdure.store.base import Query
from perdure.testing import Trial, drain, trial
from tests.doors.test_verbs import VERBS

NOTED: dict[str, Any] = {"who": "ann", "reason": "a good one"}
HOOK = "https://example.org/hook"
DELIVERY = (
    "INSERT INTO delivery (id, webhook, org, name, document_id, body, state, tries, created_ms, due_ms, ended_ms) "
    "VALUES ('1-2-3', $1, 'default', 'document.done', 'd', '{}', 'dead', 9, 1, 1, 2)"
)


def letters() -> Pipeline:
    made = Pipeline("letters", attempts=1)

    @made.stage(needs=("scales",))
    def weigh(doc: Document) -> int:
        if "bad" in doc.text:
            raise Permanent("too_heavy", "it is")
        return len(doc.text)

    return made


class Desk:
    """A store with a document that is done, one that is dead and one that waits."""

    def __init__(self, app: Trial, directory: Path) -> None:
        self.app, self.file = app, directory / "dead.jsonl"
        self.done, self.dead = (app.add(text=text, pipeline="letters").id for text in ("good", "bad"))
        drain(app)
        self.waits = app.add(text="later", pipeline="letters", delay_s=900).id

    def import_(self) -> None:
        self.app.purge(export=self.file)
        self.app.import_(self.file, **NOTED)

    def release(self) -> None:
        self.app.hold("scales")
        self.app.release("scales", NOTED["reason"], who=NOTED["who"])

    def retry_deliveries(self) -> None:
        hook = self.app.add_webhook(HOOK)
        self.app._call(self.app.service.store._change(Query(DELIVERY, (hook.id,))))
        assert self.app.retry_deliveries(**NOTED) == 1


ACTS: dict[str, Callable[[Desk], object]] = {
    "requeue": lambda desk: desk.app.requeue(desk.done, **NOTED),
    "cancel": lambda desk: desk.app.cancel(desk.waits, **NOTED),
    "delete": lambda desk: desk.app.delete(desk.done, **NOTED),
    "priority": lambda desk: desk.app.priority(desk.waits, 5, **NOTED),
    "raise_": lambda desk: desk.app.raise_(desk.waits, **NOTED),
    "rerun": lambda desk: desk.app.rerun(
        pipeline="letters", from_stage="weigh", where={"state": "done"}, **NOTED
    ),
    "requeue_dead": lambda desk: desk.app.requeue_dead(how=NOTED),  # type: ignore[arg-type]
    "export": lambda desk: desk.app.export(desk.file, **NOTED),
    "import_": Desk.import_,
    "purge": lambda desk: desk.app.purge(export=None, **NOTED),
    "pause": lambda desk: desk.app.pause("documents", **NOTED),
    "resume": lambda desk: desk.app.resume("documents", **NOTED),
    "hold": lambda desk: desk.app.hold("scales", **NOTED),
    "release": Desk.release,
    "limit": lambda desk: desk.app.limit("org:default", concurrency=3, **NOTED),
    "weigh": lambda desk: desk.app.weigh("default", 2, **NOTED),
    "sweep": lambda desk: desk.app.sweep(**NOTED),
    "audit": lambda desk: desk.app.audit(recount=True, **NOTED),
    "add_webhook": lambda desk: desk.app.add_webhook(HOOK, **NOTED),
    "remove_webhook": lambda desk: desk.app.remove_webhook(desk.app.add_webhook(HOOK).id, **NOTED),
    "retry_deliveries": Desk.retry_deliveries,
    "add_key": lambda desk: desk.app.add_key("acme", **NOTED),
    "revoke_key": lambda desk: desk.app.revoke_key(desk.app.add_key("acme")[0].id, **NOTED),
}


def test_every_verb_that_changes_something_is_tried() -> None:
    assert set(ACTS) == {verb.library for verb in VERBS if verb.changes} | {"weigh"}


@pytest.mark.parametrize("verb", ACTS)
def test_an_act_has_who_when_and_why(verb: str, store_url: str, tmp_path: Path) -> None:
    with trial(letters(), store=store_url) as app:
        desk = Desk(app, tmp_path)
        app.clock.advance(60)
        begun_ms, before = app.clock.now_ms(), {act.id for act in app.acts()}
        ACTS[verb](desk)
        ours = [act for act in app.acts() if act.id not in before and act.who == "ann"]
        assert ours, app.acts()
        for act in ours:
            assert "a good one" in act.reason
            assert begun_ms <= act.at_ms <= app.clock.now_ms()
            assert act.verb
            assert act.target

"""Running documents again from a stage on, where what is saved of it was made by another model or version.

All documents are looked at once, a page at a time in the order of their key: nothing has to be counted or sorted first,
and what is requeued on the way does not come up again. Documents in flight are left alone, and dead ones unless they
are asked for: to be run from a later stage would make them look well.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import field
from typing import Any, NotRequired, TypedDict

from perdure.core.frozen import frozen
from perdure.core.model import TERMINAL, state_filter
from perdure.engine.pipeline import AnyStage, Pipeline
from perdure.errors import InputInvalid
from perdure.store.records import Checkpoint
from perdure.store.sql_store import SqlStore

PAGE = 1_000  # documents that are looked at in one read
BATCH = 100  # that are requeued in one transaction
KEYS = ("model", "version", "collection", "org", "state")


class RerunOptions(TypedDict):
    """What `rerun` takes. `where` says which documents: by `model` and `version` of what is saved of the stage last, by
    `collection`, `org` and `state`."""

    pipeline: Pipeline | str
    from_stage: str
    where: Mapping[str, Any]
    dry_run: NotRequired[bool]
    limit: NotRequired[int | None]
    after: NotRequired[str | None]  # to go on from: `Rerun.last`
    reason: NotRequired[str]
    who: NotRequired[str | None]


@frozen
class Rerun:
    """How many documents fit (`found`), and what became of them. `models` are those that are saved of the stage,
    whichever was asked for, with their number of documents."""

    looked_at: int = 0
    found: int = 0
    requeued: int = 0
    running: int = 0  # they fit, and are in flight: left alone
    refused: int = 0
    models: dict[str, int] = field(default_factory=dict)
    last: str | None = None  # the last one that was looked at; None: there are no more


class Conditions:
    """Which documents: what they are, what is saved of them, how they ended."""

    def __init__(self, where: Mapping[str, Any]) -> None:
        if unknown := sorted(set(where) - set(KEYS)):
            message = f"documents are chosen by {', '.join(KEYS)}, not by {', '.join(unknown)}"
            raise InputInvalid(message, code="where_unknown")
        self.place = {name: where[name] for name in ("org", "collection") if name in where}
        self.saved: dict[str, Any] = {}
        if "model" in where:
            self.saved["model"] = where["model"] or None  # that of a stage without one
        if "version" in where:
            self.saved["version"] = _number(where["version"])
        self.states = _ended(where["state"]) if "state" in where else None

    def placed(self, one: Checkpoint) -> bool:
        return all(getattr(one, name) == value for name, value in self.place.items())

    def made(self, one: Checkpoint) -> bool:
        """Whether it was made as was asked for; what is not saved was not made at all."""
        if self.saved and one.version is None:
            return False
        return all(getattr(one, name) == value for name, value in self.saved.items())


async def rerun(
    store: SqlStore, pipeline: Pipeline, stage: AnyStage, conditions: Conditions, limit: int | None,
    after: str | None, again: Callable[[Checkpoint], Awaitable[str]] | None,
) -> AsyncIterator[Rerun]:  # fmt: skip
    """Requeue what fits, up to `limit` (without `again`, only count it), of those after that one; tells after each page
    how far it is."""
    counts: Counter[str] = Counter()
    models: Counter[str] = Counter()
    org = conditions.place.get("org")
    place, more = (org or "", "") if after is None else _place(after, org), True
    while more and (limit is None or counts["found"] < limit):
        page = await store.checkpoints(place, PAGE, stage.name, stage.was)
        if page:
            place = (page[-1].org, page[-1].document_id)
        more = len(page) == PAGE and org in (None, place[0])
        ours = [one for one in page if one.pipeline == pipeline.name and conditions.placed(one)]
        models.update(one.model or "" for one in ours if one.version is not None)
        fitting = [one for one in ours if conditions.made(one)]
        found = [one for one in fitting if one.state in (conditions.states or {"done"})]
        if limit is not None and counts["found"] + len(found) > limit:
            found, more = found[: limit - counts["found"]], True
            place = (found[-1].org, found[-1].document_id)
        counts["looked_at"] += sum(org in (None, one.org) for one in page)
        counts["found"] += len(found)
        if conditions.states is None:
            counts["running"] += sum(one.state == "open" for one in fitting)
        if again is not None:
            for n in range(0, len(found), BATCH):
                answers = await asyncio.gather(*map(again, found[n : n + BATCH]))
                counts.update(map(_word, answers))
        yield Rerun(**counts, models=dict(models), last=f"{place[1]}@{place[0]}" if more else None)


def no_such_model(
    asked: str | None, pipeline: Pipeline, stage: AnyStage, there: Mapping[str, int]
) -> InputInvalid:
    """Said where nothing was found: which models there are."""
    known = (
        ", ".join(f"{name or '(none)'}: {n}" for name, n in sorted(there.items()))
        or "none: nothing is saved of it"
    )
    return InputInvalid(
        f"no document has {stage.name} of pipeline {pipeline.name} saved with model {asked!r} (what is saved: {known})",
        code="model_unknown",
    )


def not_on_its_own(pipeline: Pipeline, others: Iterable[Pipeline]) -> InputInvalid:
    """Said where it has no documents of its own: whose it follows."""
    before = ", ".join(sorted(other.name for other in others))
    return InputInvalid(
        f"{pipeline.name} follows {before} and has no documents of its own; run those again from the stage "
        f"that spawns its jobs (pipeline {before.partition(',')[0]}), and it runs anew with them",
        code="pipeline_follows",
    )


def _place(last: str, org: str | None) -> tuple[str, str]:
    """Organisation and id; both may have any form, so the organisation is the one that is asked for, if one is."""
    if org is not None and last.endswith(f"@{org}"):
        return org, last.removesuffix(f"@{org}")
    id_, sign, org = last.partition("@")
    if not sign:
        raise InputInvalid(
            f"after takes what the run before gave as its last one (ID@ORGANISATION), not {last!r}"
        )
    return org, id_


def _word(answer: str) -> str:
    """Of those that were found, somebody else may have set some in motion since."""
    return "requeued" if answer == "requeued" else "running" if "in progress" in answer else "refused"


def _number(version: object) -> int:
    try:
        return int(str(version))
    except ValueError:
        raise InputInvalid(f"a version is a whole number, not {version!r}") from None


def _ended(word: str) -> frozenset[str]:
    try:
        states, _ = state_filter(word)
    except ValueError as error:
        raise InputInvalid(str(error), code="state_unknown") from None
    if not states <= TERMINAL:
        raise InputInvalid(
            f"only what has ended is run again: state takes done, dead or cancelled, not {word}"
        )
    return frozenset(map(str, states))

"""What happened to a document, in order and with durations: a story of its row, attempts, saves, acts and children.

Pure: `tell` makes it of a Situation and a little more, in time that is linear in both. What ran under a claim that has
not ended is told by `why`. A long history has pages, the newest first.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from typing import NamedTuple

from perdure.core.frozen import frozen
from perdure.core.lane import needs_of
from perdure.core.model import job_key
from perdure.operate.choosing import no_place
from perdure.operate.situation import Situation, situation
from perdure.operate.why import explain
from perdure.operate.words import count, line, size, span
from perdure.store.base import BREAKER
from perdure.store.inspecting import ChildRecord, SaveRecord
from perdure.store.reading import ATTEMPTS_MAX
from perdure.store.records import Act, Attempt, AttemptPlace, DocumentRecord, Status
from perdure.store.sql_store import SqlStore

#: A wait that is shorter is not worth a line.
WAIT_MS = 1_000
ACT_LAST = 10**18 - 1  # no act has this number yet
ATTEMPT_LAST = (10**9 - 1, 10**15 - 1, 10**9 - 1)  # and no attempt this place
#: What came first of what has the same time.
ORDER = ("added", "act", "event", "claim", "saved", "spawned", "ended", "wait", "children", "state", "now")


@frozen
class Happening:
    """Something that happened to a document. `job` names a follow-up job, `took_ms` is how long it lasted."""

    at_ms: int
    kind: str  # one of ORDER
    text: str
    took_ms: int | None = None
    generation: int = 1
    job: str = ""


@dataclass
class Story:
    """What a timeline is told of."""

    situation: Situation
    document: DocumentRecord
    saves: tuple[SaveRecord, ...] = ()
    items: dict[tuple[str, str, int], int] | None = None
    holds: tuple[Act, ...] = ()  # holds and releases of the dependencies that it asked or needs, oldest first
    from_ms: int = -1  # what is neither an attempt nor an act is told if it happened after this
    to_ms: int | None = None  # and not after this; None: and what is now
    generation: int | None = None  # that the newest act belongs to; None: the present one

    @cached_property
    def save_times(self) -> list[int]:
        """When anything was saved, in order."""
        return sorted(save.saved_ms for save in self.saves)

    @cached_property
    def saves_of(self) -> dict[tuple[str, int], list[tuple[int, str]]]:
        """When which stage was saved, in order, by pipeline and generation."""
        found: dict[tuple[str, int], list[tuple[int, str]]] = defaultdict(list)
        for save in self.saves:
            found[save.pipeline, save.generation].append((save.saved_ms, save.stage))
        return {which: sorted(each, key=lambda one: one[0]) for which, each in found.items()}

    @cached_property
    def requeue_times(self) -> list[int]:
        """When it was requeued, in order."""
        return sorted(act.at_ms for act in self.situation.acts if act.verb == "requeue")

    @cached_property
    def downs(self) -> list[Downs]:
        """When each dependency was down."""
        return _downs(self.holds)


class Cut(NamedTuple):
    """Where a page of a timeline ends and the next one, of what was before, begins."""

    to_ms: int
    act: int
    generation: int  # that the next act belongs to
    attempt: AttemptPlace

    @classmethod
    def of(cls, word: str) -> Cut:
        """The cut that the word stands for. Raises: InputInvalid."""
        found = re.fullmatch(r"(-1|\d{1,15})_(\d{1,18})_(\d{1,9})_(.+)", word, re.S)
        try:
            if found is None:
                raise ValueError(word)
            return cls(int(found[1]), int(found[2]), int(found[3]), AttemptPlace.of(found[4]))
        except ValueError:
            raise no_place() from None

    def __str__(self) -> str:
        return "_".join(map(str, tuple(self)))


@frozen
class Page:
    """A part of a timeline in order; `next` leads to what was before, None if there is nothing."""

    timeline: list[Happening]
    next: str | None


async def page(
    store: SqlStore,
    status: Status,
    document: DocumentRecord,
    after: str | None = None,
    limit: int = ATTEMPTS_MAX,
) -> Page:
    """The newest attempts and acts, at most `limit` of both, with what happened meanwhile; those before `after`."""
    cut = None if after is None else Cut.of(after)
    attempts = await store.attempts(status.org, status.id, cut and cut.attempt, limit + 1)
    acts = await store.acts(limit + 1, target=status.id, after=cut.act if cut else None)
    from_ms = max(
        min(a.started_ms for a in attempts[-limit:]) - 1 if len(attempts) > limit else -1,
        min(act.at_ms for act in acts[:limit]) - 1 if len(acts) > limit else -1,
    )
    later = list(takewhile(lambda a: a.started_ms > from_ms, reversed(attempts[-limit:])))
    shown = list(takewhile(lambda act: act.at_ms > from_ms, acts[:limit]))
    known = replace(await situation(store, status), attempts=tuple(reversed(later)), acts=tuple(shown))
    told = await story(store, known, document)
    told = replace(told, from_ms=from_ms, to_ms=cut and cut.to_ms, generation=cut and cut.generation)
    more = len(attempts) > len(later) or len(acts) > len(shown)
    happenings = await asyncio.to_thread(tell, told)
    return Page(happenings, str(_next(told, cut)) if more else None)


def _next(told: Story, cut: Cut | None) -> Cut:
    s = told.situation
    first = told.generation or s.status.generation
    newest = AttemptPlace(*ATTEMPT_LAST, s.status.id)
    oldest = s.attempts[0].place if s.attempts else cut.attempt if cut else newest
    act = s.acts[-1].id if s.acts else cut.act if cut else ACT_LAST
    return Cut(told.from_ms, act, max(1, first - sum(act.verb == "requeue" for act in s.acts)), oldest)


async def story(store: SqlStore, known: Situation, document: DocumentRecord) -> Story:
    """Read what belongs to it."""
    org, id_ = known.status.org, known.status.id
    needed = {name for attempt in known.attempts for name in attempt.requests}
    needed |= needs_of(known.job.lane) if known.job is not None else set()
    holds = [act for name in sorted(needed) for act in await store.acts(1_000, target=name)]
    return Story(
        known,
        document,
        tuple(await store.saved_of(org, id_)),
        await store.items_of(org, id_),
        tuple(sorted((a for a in holds if a.verb in ("hold", "release")), key=lambda act: act.id)),
    )


def tell(told: Story) -> list[Happening]:
    """Everything in order; what has not ended comes last, as it is now."""
    s = told.situation
    others = [
        _added(told.document),
        _saves(told),
        _children(s.children),
        _events(s),
        _followers(s),
        _state(s),
    ]
    to_ms = float("inf") if told.to_ms is None else told.to_ms
    found = [one for part in others for one in part if told.from_ms < one.at_ms <= to_ms]
    found += _acts(told)
    for attempts in _by_job(s.attempts):
        found += _claims(told, attempts)
    return sorted(
        found, key=lambda one: (one.kind == "now", one.at_ms, one.generation, ORDER.index(one.kind))
    )


def _added(document: DocumentRecord) -> Iterator[Happening]:
    name = f"{line(document.name)}, " if document.name else ""
    whose = f", spawned by {document.parent_id}" if document.parent_id else ""
    where = f"pipeline {document.pipeline}, collection {document.collection}"
    yield Happening(document.created_ms, "added", f"added: {name}{size(document.size)}, {where}{whose}")


def _state(s: Situation) -> Iterator[Happening]:
    """How it ended, or what it waits for."""
    if s.status.finished_ms is not None:
        error = f" ({s.status.error_code})" if s.status.error_code else ""
        yield Happening(s.status.finished_ms, "state", f"{s.status.state}{error}", None, s.status.generation)
    else:
        yield Happening(s.now_ms, "now", explain(s).sentence, None, s.status.generation)


def _acts(told: Story) -> Iterator[Happening]:
    generation = told.generation or told.situation.status.generation
    for act in told.situation.acts:
        begins = f", generation {generation} begins" if act.verb == "requeue" else ""
        reason = f": {line(act.reason)}" if act.reason else ""
        yield Happening(act.at_ms, "act", f"{act.verb} by {act.who}{reason}{begins}", None, generation)
        if act.verb == "requeue":
            generation = max(1, generation - 1)


def _saves(told: Story) -> Iterator[Happening]:
    main = told.situation.status.pipeline
    before: set[tuple[str, str]] = set()
    for save in told.saves:
        again = " again" if (save.pipeline, save.stage) in before else ""
        before.add((save.pipeline, save.stage))
        items = (told.items or {}).get((save.pipeline, save.stage, save.generation), 0)
        facts = [size(save.size), f"version {save.version}" if save.version > 1 else "", save.model or ""]
        facts += [count(items, "item") if items else "", "by its fallback" if save.degraded else ""]
        text = f"stage {save.stage} saved{again}: {', '.join(filter(None, facts))}"
        job = "" if save.pipeline == main else save.pipeline
        yield Happening(save.saved_ms, "saved", text, save.duration_ms, save.generation, job)


def _claims(told: Story, attempts: list[Attempt]) -> Iterator[Happening]:
    """The attempts of one job: what each waited for, when it began, how it ended; a short one in one line."""
    s = told.situation
    name = attempts[0].job_key.removeprefix(job_key(s.status.id)).lstrip("/")
    before: Attempt | None = None
    for a in attempts:
        if before is not None and before.generation != a.generation:
            before = None
        yield from _wait(told, before, a, name)
        within = bisect_left(told.save_times, a.started_ms) < bisect_right(told.save_times, a.ended_ms)
        where = f"in worker {a.worker}" if a.worker else "in another service"
        resumed = _resumed(told, before, a) if before is not None and not name else ""
        begun = f"{f'attempt {a.attempt}' if a.charged else 'a claim'} {where}"
        took_ms, common = a.ended_ms - a.started_ms, (a.generation, name)
        if within or took_ms >= WAIT_MS:
            yield Happening(a.started_ms, "claim", f"{begun} begins{resumed}", None, *common)
            yield Happening(a.ended_ms, "ended", _ended(a), took_ms, *common)
        else:
            yield Happening(a.started_ms, "ended", f"{begun}{resumed}: {_ended(a)}", took_ms, *common)
        before = a


def _resumed(told: Story, before: Attempt, a: Attempt) -> str:
    """Where the main job goes on; saves of follow-up jobs and of earlier generations do not say that."""
    saves = told.saves_of.get((told.situation.status.pipeline, a.generation), [])
    if number := bisect_left(saves, a.started_ms, key=lambda one: one[0]):
        return f", goes on after {saves[number - 1][1]}"
    return f", goes on at {before.stage}" if a.generation > 1 else ""


def _ended(a: Attempt) -> str:
    code = f"{a.error_code}: {a.error_type}" if a.error_code == "unexpected" else a.error_code
    status = f" (HTTP {a.status_code})" if a.status_code else ""
    message = line(a.message or "")
    twice = bool(message) and message in a.why
    error = f": {code}{f': {message}' if message else ''}{status}" if code and not twice else ""
    asked = ", ".join(f"{name} {n}" for name, n in sorted(a.requests.items()))
    requests = f" [requests: {asked}]" if asked else ""
    why = f" – {a.why}" if a.why and a.why not in error else ""
    return f"{a.outcome} at stage {a.stage}{error}{why}{requests}"


def _wait(told: Story, before: Attempt | None, a: Attempt, name: str) -> Iterator[Happening]:
    """What lay between this attempt and the one before, or the beginning of its generation."""
    s = told.situation
    if before is not None:
        began_ms = before.ended_ms
    elif name:
        return
    else:
        number = bisect_right(told.requeue_times, a.started_ms)
        cut = told.from_ms >= 0 and a.generation == s.attempts[0].generation
        if cut or (a.generation > 1 and not number):
            return  # what was before is not known here
        began_ms = told.requeue_times[number - 1] if number else s.status.created_ms
    waited_ms = a.started_ms - began_ms
    if waited_ms < WAIT_MS:
        return
    reasons = []
    delay_ms = 0
    if before is not None and (before.delay_ms or before.outcome == "hold"):
        reasons, delay_ms = [before.why], before.delay_ms or 0
    gathered = before is not None and before.outcome == "gather"
    held_ms, why = (0, "") if gathered else _held(told.downs, began_ms, a.started_ms)
    if gathered:
        reasons = ["for what it spawned to end"]
    elif held_ms:
        reasons.append(f"held for {span(held_ms)} of it: {why}")
    elif delay_ms and waited_ms - delay_ms >= WAIT_MS:
        reasons.append(f"then {span(waited_ms - delay_ms)} for its turn")
    text = f"waited: {'; '.join(reasons)}" if reasons else "waited for its turn"
    yield Happening(began_ms, "wait", text, waited_ms, a.generation, name)


class Down(NamedTuple):
    """A time in which a dependency was down; it has not ended where `until_ms` is infinite."""

    since: Act
    until_ms: float


#: Of one dependency, in order.
Downs = list[Down]


def _downs(acts: Iterable[Act]) -> list[Downs]:
    """When each dependency was down, of holds and releases in order."""
    down: dict[str, Act] = {}
    found: dict[str, Downs] = defaultdict(list)
    for act in acts:
        if act.verb == "hold":
            down.setdefault(act.target, act)
        elif (begun := down.pop(act.target, None)) is not None:
            found[act.target].append(Down(begun, act.at_ms))
    for begun in down.values():
        found[begun.target].append(Down(begun, float("inf")))
    return list(found.values())


def _until_ms(down: Down) -> float:
    return down.until_ms


def _held(downs: Iterable[Downs], from_ms: int, to_ms: int) -> tuple[int, str]:
    """For how long of this time a dependency was down, and why.

    Nothing is claimed while what it needs is held, but for the few that try a service for the breaker: what was still
    down at the end of the wait was not what it waited for.
    """
    held: list[tuple[int, str]] = []
    for each in downs:
        for number in range(bisect_right(each, float(from_ms), key=_until_ms), len(each)):
            begun, until_ms = each[number]
            if begun.at_ms >= to_ms:
                break
            if until_ms <= to_ms or begun.who == BREAKER:
                overlap_ms = int(min(until_ms, to_ms)) - max(begun.at_ms, from_ms)
                reason = f" ({line(begun.reason)})" if begun.reason else ""
                held.append((overlap_ms, f"{begun.target} was down{reason}"))
    return max(held, default=(0, ""))


def _children(children: Iterable[ChildRecord]) -> Iterator[Happening]:
    by_pipeline: dict[str, list[ChildRecord]] = defaultdict(list)
    for one in children:
        by_pipeline[one.pipeline].append(one)
    for pipeline, parts in by_pipeline.items():
        total, first_ms = sum(one.count for one in parts), min(one.first_ms for one in parts)
        took_ms = max(one.last_ms for one in parts) - first_ms
        yield Happening(
            first_ms, "spawned", f"spawned {count(total, 'document')} of pipeline {pipeline}", took_ms
        )
        ended = [one for one in parts if one.finished_ms is not None]
        if ended:
            states = ", ".join(f"{one.count:,} {one.state}" for one in parts)
            last_ms = max(one.finished_ms or 0 for one in ended)
            left = "so far" if len(ended) < len(parts) else "all ended"
            yield Happening(last_ms, "children", f"its documents of pipeline {pipeline}, {left}: {states}")


def _events(s: Situation) -> Iterator[Happening]:
    for event in s.events:
        tried = f", tried {count(event.tries, 'time')}: {line(event.error or '')}" if event.tries else ""
        yield Happening(event.created_ms, "event", f"event {event.name} waits to be published{tried}")


def _followers(s: Situation) -> Iterator[Happening]:
    begun = {a.job_key for a in s.attempts}
    for job in s.followers:
        if job.created_ms and job.key not in begun:
            text = f"follow-up job {job.name} spawned, {job.state}"
            yield Happening(job.created_ms, "spawned", text, None, job.generation, job.name)


def _by_job(attempts: Iterable[Attempt]) -> list[list[Attempt]]:
    found: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        found[attempt.job_key].append(attempt)
    return [sorted(each, key=lambda a: (a.generation, a.claim)) for each in found.values()]

"""What happened to a document, in order and with durations: a story of its row, attempts, saves, acts and children.

Pure: `tell` makes it of a Situation and a little more. What ran under a claim that has not ended is told by `why`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from perdure.core.frozen import frozen
from perdure.core.lane import needs_of
from perdure.core.model import job_key
from perdure.operate.situation import Situation
from perdure.operate.why import explain
from perdure.operate.words import count, line, size, span
from perdure.store.base import BREAKER
from perdure.store.inspecting import ChildRecord, SaveRecord
from perdure.store.records import Act, Attempt, DocumentRecord
from perdure.store.sql_store import SqlStore

#: A wait that is shorter is not worth a line.
WAIT_MS = 1_000
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


@frozen
class Story:
    """What a timeline is told of."""

    situation: Situation
    document: DocumentRecord
    saves: tuple[SaveRecord, ...] = ()
    items: dict[tuple[str, str, int], int] | None = None
    holds: tuple[Act, ...] = ()  # holds and releases of the dependencies that it asked or needs, oldest first


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
    parts = [_added(told.document), _acts(s), _saves(told), _children(s.children), _events(s), _followers(s)]
    parts += [_claims(told, attempts) for attempts in _by_job(s.attempts)]
    found = [one for part in parts for one in part]
    if s.status.finished_ms is not None:
        error = f" ({s.status.error_code})" if s.status.error_code else ""
        found.append(
            Happening(s.status.finished_ms, "state", f"{s.status.state}{error}", None, s.status.generation)
        )
    else:
        found.append(Happening(s.now_ms, "now", explain(s).sentence, None, s.status.generation))
    return sorted(
        found, key=lambda one: (one.kind == "now", one.at_ms, one.generation, ORDER.index(one.kind))
    )


def _added(document: DocumentRecord) -> Iterator[Happening]:
    name = f"{line(document.name)}, " if document.name else ""
    whose = f", spawned by {document.parent_id}" if document.parent_id else ""
    where = f"pipeline {document.pipeline}, collection {document.collection}"
    yield Happening(document.created_ms, "added", f"added: {name}{size(document.size)}, {where}{whose}")


def _acts(s: Situation) -> Iterator[Happening]:
    generation = 1
    for act in reversed(s.acts):
        begins = ""
        if act.verb == "requeue":
            generation += 1
            begins = f", generation {generation} begins"
        reason = f": {line(act.reason)}" if act.reason else ""
        yield Happening(act.at_ms, "act", f"{act.verb} by {act.who}{reason}{begins}", None, generation)


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
        within = [x.saved_ms for x in told.saves if a.started_ms <= x.saved_ms <= a.ended_ms]
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
    ours = (told.situation.status.pipeline, a.generation)
    saved = [x.stage for x in told.saves if (x.pipeline, x.generation) == ours and x.saved_ms < a.started_ms]
    if saved:
        return f", goes on after {saved[-1]}"
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
        starts = [s.status.created_ms] + [
            x.at_ms for x in s.acts if x.verb == "requeue" and x.at_ms <= a.started_ms
        ]
        began_ms = max(starts)
    waited_ms = a.started_ms - began_ms
    if waited_ms < WAIT_MS:
        return
    reasons = []
    delay_ms = 0
    if before is not None and (before.delay_ms or before.outcome == "hold"):
        reasons, delay_ms = [before.why], before.delay_ms or 0
    gathered = before is not None and before.outcome == "gather"
    held_ms, why = (0, "") if gathered else _held(told.holds, began_ms, a.started_ms)
    if gathered:
        reasons = ["for what it spawned to end"]
    elif held_ms:
        reasons.append(f"held for {span(held_ms)} of it: {why}")
    elif delay_ms and waited_ms - delay_ms >= WAIT_MS:
        reasons.append(f"then {span(waited_ms - delay_ms)} for its turn")
    text = f"waited: {'; '.join(reasons)}" if reasons else "waited for its turn"
    yield Happening(began_ms, "wait", text, waited_ms, a.generation, name)


def _held(acts: Iterable[Act], from_ms: int, to_ms: int) -> tuple[int, str]:
    """For how long of this time a dependency was down, and why.

    Nothing is claimed while what it needs is held, but for the few that try a service for the breaker: what was still
    down at the end of the wait was not what it waited for.
    """
    down: dict[str, Act] = {}
    held: list[tuple[int, str]] = []
    for act in (*acts, *(Act(0, to_ms, "", "release", None, name, "") for name in {x.target for x in acts})):
        if act.verb == "hold":
            down.setdefault(act.target, act)
        elif (begun := down.pop(act.target, None)) is not None:
            overlap_ms = min(act.at_ms, to_ms) - max(begun.at_ms, from_ms)
            released = act.who and act.at_ms <= to_ms
            if overlap_ms > 0 and (released or begun.who == BREAKER):
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
    for job in s.followers:
        if job.created_ms and not any(a.job_key == job.key for a in s.attempts):
            text = f"follow-up job {job.name} spawned, {job.state}"
            yield Happening(job.created_ms, "spawned", text, None, job.generation, job.name)


def _by_job(attempts: Iterable[Attempt]) -> list[list[Attempt]]:
    found: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        found[attempt.job_key].append(attempt)
    return [sorted(each, key=lambda a: (a.generation, a.claim)) for each in found.values()]

"""What needs a person, the most urgent first, and what to press. Pure: made of the facts of `operate.status`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from shlex import quote
from typing import Any

from perdure.core.frozen import frozen
from perdure.core.services import CONFIGURATION
from perdure.operate.words import count, line, since, until
from perdure.store.base import BREAKER

Facts = Mapping[str, Any]

SEVERITIES = ("critical", "warning", "notice")
#: A dependency that the breaker has held for longer is worth a person's look, and so is an event that is not published.
DOWN_MS = 15 * 60_000
OUTBOX_MS = 60_000
WRITER_MS = 60_000
#: Of each KPI: from where on it is worth a look, and from where on it is an alarm (below, where the first is larger).
BOUNDS = {
    "retry_rate": (0.05, 0.20),
    "success_after_retry": (0.80, 0.50),
    "retries_per_retried": (2.0, 3.0),
    "p95_added_ms": (5_000, 10_000),
    "failure_rate": (0.01, 0.05),
}
KPIS = {"retry_rate": "are retried", "failure_rate": "fail"}


@frozen
class Problem:
    """Something that somebody should know; `press` is the command that helps, if one does."""

    severity: str
    text: str
    press: str | None = None


def problems(facts: Facts) -> list[Problem]:
    """Everything that is not as it should be, in the order of its urgency."""
    parts = (
        _audited,
        _volatile,
        _exposed,
        _unserved,
        _lost,
        _silent,
        _escalated,
        _given_back,
        _lacking,
        _feed_waits,
        _dead,
        _follow_ups,
        _undelivered,
        _stuck,
        _down,
        _paused,
        _outbox,
        _calls,
        _starved,
        _in_clear,
    )
    found = [one for part in parts for one in part(facts)]
    return sorted(found, key=lambda one: SEVERITIES.index(one.severity))


def headline(facts: Facts, found: Sequence[Problem]) -> str:
    """One line: that all is well, or the worst thing and what to press."""
    if not found or found[0].severity == "notice":
        documents = facts["documents"]
        said = ", ".join(f"{n:,} {state}" for state, n in documents.items() if n) or "no documents yet"
        note = f" ({found[0].text})" if found else ""
        return f"All well: {said}{note}."
    worst = found[0]
    press = f": press `{worst.press}`" if worst.press else ""
    more = sum(one.severity != "notice" for one in found) - 1
    others = f" ({more:,} more below)" if more else ""
    return f"{worst.text}{press}{others}."


def grade(kpi: str, value: float | None) -> str:
    """How a KPI is: empty, `look` or `alarm`."""
    look, alarm = BOUNDS[kpi]
    if value is None:
        return ""
    sign = 1 if alarm > look else -1
    return "alarm" if sign * value > sign * alarm else "look" if sign * value > sign * look else ""


def _audited(facts: Facts) -> Iterator[Problem]:
    """What was accepted and is not there, or is there and does not belong."""
    audit = facts["audit"]
    if n := audit["difference"]:
        what = "accepted and not there" if n > 0 else "there that nobody accepted"
        yield Problem("critical", f"{count(abs(n), 'document')} {_is(abs(n))} {what}", "perdure audit")
    elif n := audit["problems"]:
        found = f"The audit {since(audit['audited_ms'], facts['now_ms'])} ago found {count(n, 'problem')}"
        yield Problem("warning", found, "perdure audit")


def _volatile(facts: Facts) -> Iterator[Problem]:
    """A server that may forget what it has confirmed."""
    durability = facts["durability"]
    if durability.get("fsync") == "off":
        yield Problem("critical", "fsync is off at PostgreSQL: a power cut can destroy the store; set it on")
    if durability.get("synchronous_commit") == "off":
        yield Problem("notice", "synchronous_commit is off at PostgreSQL; sessions of Perdure set it on")


def _exposed(facts: Facts) -> Iterator[Problem]:
    """Files that users outside of the setting can read or lock."""
    if command := facts["exposed"]:
        yield Problem("warning", "Other users can use the files of this store", command)


def _in_clear(facts: Facts) -> Iterator[Problem]:
    """Secrets that a copy of the store gives away."""
    if n := facts["clear_secrets"]:
        told = f"The secrets of {count(n, 'webhook')} are in clear in the store"
        yield Problem("notice", f"{told}; set PERDURE_SECRET_KEY and add them again")


def _escalated(facts: Facts) -> Iterator[Problem]:
    """A tier that asks for a person."""
    tier = facts["escalation"]
    if tier["tier"] >= 2:
        by_ms = tier["answer_by_ms"]
        late = by_ms is not None and by_ms <= facts["now_ms"]
        answer = (
            "an answer is overdue" if late else f"answer {until(by_ms, facts['now_ms'])}" if by_ms else ""
        )
        said = f"Escalation tier {tier['tier']} ({tier['name']}): {tier['why']}, {answer}"
        press = "perdure sweep --once" if "stuck" in tier["why"] else "perdure dead groups"
        yield Problem("critical" if tier["tier"] > 2 else "warning", said, press)


def _unserved(facts: Facts) -> Iterator[Problem]:
    """Work that no worker is there for."""
    for queue in facts["queues"]:
        waiting = queue["ready"] + queue["over_limit"]
        due = facts["due_ms"].get(queue["name"])
        late = due is not None and due < facts["now_ms"] - OUTBOX_MS and queue["waiting"]
        if queue["workers"] or queue["paused"] or not (waiting or late):
            continue
        gone = [w for w in facts["workers"] if queue["name"] in w["queues"]]
        last = max(gone, key=lambda w: w["beat_ms"], default=None)
        ended = (
            f" (the last one, {last['name']}, went {since(last['beat_ms'], facts['now_ms'])} ago)"
            if last
            else ""
        )
        wait = f"{count(waiting or queue['waiting'], 'job')} in queue {queue['name']}"
        yield Problem("critical", f"No worker serves {wait}{ended}", "perdure worker")


def _lost(facts: Facts) -> Iterator[Problem]:
    """Workers that died with documents in hand."""
    alive = any(w["alive"] for w in facts["workers"])
    for worker in facts["workers"]:
        if not worker["alive"] and worker["in_hand"]:
            had = f"Worker {worker['id']} ({worker['name']}) is gone with {count(worker['in_hand'], 'job')} in hand"
            if alive:
                yield Problem("notice", f"{had}; others take them back within seconds")
            else:
                yield Problem("critical", f"{had} and there is no other", "perdure worker")


def _silent(facts: Facts) -> Iterator[Problem]:
    """Workers that live and do not answer: code holds their event loop, or their process is stopped."""
    for worker in facts["workers"]:
        if worker["alive"] and worker["silent_since_ms"] is not None:
            age = since(worker["silent_since_ms"], facts["now_ms"])
            told = f"Worker {worker['id']} ({worker['name']}) has not answered for {age}"
            then = "its supervisor replaces it, and the log says where it stands"
            yield Problem("warning", f"{told} with {count(worker['in_hand'], 'job')} in hand; {then}")


def _given_back(facts: Facts) -> Iterator[Problem]:
    """Work that workers take and cannot do, such as that of a pipeline that their app does not have."""
    for pipeline, number, example in facts["given_back"]:
        told = f"No worker that took them could run {count(number, 'job')} of pipeline {pipeline}"
        yield Problem("warning", told, f"perdure why {example}")


def _lacking(facts: Facts) -> Iterator[Problem]:
    """Work that no worker takes because none has its pipeline, as while a new release starts."""
    for queue, pipeline, example in facts["unserved"]:
        told = f"No worker of queue {queue} has pipeline {pipeline}, and jobs of it wait"
        yield Problem("warning", told, f"perdure why {example}")


def _feed_waits(facts: Facts) -> Iterator[Problem]:
    """A transaction that stays open: what happens after its first write is not in the feed until it ends."""
    oldest = facts["oldest_writer"]
    if oldest is None or oldest.since_ms < WRITER_MS:
        return
    whose = f"{oldest.name} (database {oldest.database})"
    age = since(facts["now_ms"] - oldest.since_ms, facts["now_ms"])
    end = "it is prepared: commit it or roll it back"
    if oldest.pid is not None:
        end = f"SELECT pg_terminate_backend({oldest.pid}) ends it"
    told = f"Events and webhooks wait for a transaction of {whose} that has been open for {age}; {end}"
    yield Problem("warning", told)


def _dead(facts: Facts) -> Iterator[Problem]:
    number, groups = facts["dead"]["documents"], [one for one in facts["dead"]["groups"] if not one["job"]]
    if not number:
        return
    most = groups[0] if groups else None
    share = f", {most['count']:,} of them" if most and most["count"] < number else ""
    cause = f"{share} of {most['code']} at stage {most['stages'][0]}" if most else ""
    yield Problem("warning", f"{count(number, 'document')} {_is(number)} dead{cause}", "perdure dead groups")


def _follow_ups(facts: Facts) -> Iterator[Problem]:
    """Jobs that followed from documents and died: these are done, and something of theirs is missing."""
    for name, number in facts["dead"]["follow_ups"].items():
        told = f"{count(number, 'follow-up job')} {name} {_is(number)} dead"
        yield Problem("warning", told, f"perdure dead groups {name}.failed")


def _undelivered(facts: Facts) -> Iterator[Problem]:
    """Events that a webhook did not take in any of its tries."""
    for org, number in facts["dead_deliveries"].items():
        noun = "delivery" if number == 1 else "deliveries"
        told = f"{number:,} {noun} to webhooks of organisation {org} failed for good"
        yield Problem("warning", told, f"perdure webhook retry --org {quote(org)}")


def _stuck(facts: Facts) -> Iterator[Problem]:
    stuck = facts["stuck"]
    if n := stuck["documents"]:
        age = since(stuck["since_ms"], facts["now_ms"])
        longest = f", the longest for {age}" if age else ""
        yield Problem("warning", f"{count(n, 'document')} {_is(n)} stuck{longest}", "perdure sweep --once")


def _down(facts: Facts) -> Iterator[Problem]:
    for one in facts["dependencies"]:
        if one["state"] != "down":
            continue
        age_ms = facts["now_ms"] - (one["since_ms"] or facts["now_ms"])
        why = f" ({line(one['reason'])})" if one["reason"] else ""
        wait = f"{count(one['held'], 'document')} wait{'s' * (one['held'] == 1)}"
        told = f"{one['name']} has been down for {since(one['since_ms'], facts['now_ms'])}{why}: {wait}"
        if one["held_by"] == BREAKER:
            severity = "warning" if age_ms > DOWN_MS else "notice"
            release = f"it is probed by itself; `perdure release {one['name']}` lets them go now"
            yield Problem(severity, f"{told}, {release}", "perdure dependencies")
        elif one["held_by"] == CONFIGURATION:
            if one["held"]:
                yield Problem(
                    "warning", f"{told} until a worker starts that is configured for it", "perdure worker"
                )
        else:
            severity = "warning" if one["held"] else "notice"
            held = f"{one['name']} is held by {one['held_by']}{why}: {wait}"
            yield Problem(severity, held, f"perdure release {one['name']}")


def _paused(facts: Facts) -> Iterator[Problem]:
    for queue in facts["queues"]:
        if queue["paused"]:
            n = queue["stopped"]
            severity = "warning" if n else "notice"
            text = f"Queue {queue['name']} is paused, {count(n, 'job')} wait{'s' * (n == 1)}"
            yield Problem(severity, text, f"perdure resume {queue['name']}")


def _outbox(facts: Facts) -> Iterator[Problem]:
    outbox = facts["outbox"]
    if outbox["waiting"] and facts["now_ms"] - (outbox["since_ms"] or facts["now_ms"]) > OUTBOX_MS:
        n, age = outbox["waiting"], since(outbox["since_ms"], facts["now_ms"])
        reason = line(outbox["reason"] or "do workers have RABBITMQ_HOST?")
        waits = f"{count(n, 'event')} wait{'s' * (n == 1)} to be published"
        yield Problem("warning", f"{waits}, the oldest for {age} ({reason})")


def _calls(facts: Facts) -> Iterator[Problem]:
    for kpi in facts["calls"]:
        for name, words in KPIS.items():
            if grade(name, kpi[name]) == "alarm":
                text = f"{kpi[name]:.0%} of the calls to {kpi['api_name']} {words}"
                yield Problem("warning", text, "perdure dependencies")


def _starved(facts: Facts) -> Iterator[Problem]:
    if n := facts["stuck"]["starved"]:
        yield Problem("notice", f"{count(n, 'document')} only lack{'s' * (n == 1)} a free worker")


def _is(number: int) -> str:
    return "is" if number == 1 else "are"

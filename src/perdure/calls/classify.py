"""What a failed call means: `classify(error) -> Verdict`.

An error is asked in this order, and the first answer counts: our own errors; the service's own code; `x-should-retry:
true`; the HTTP status; the SQLSTATE; the errno; the type. `x-should-retry: false` ends this call: trouble that may
pass keeps its verdict, and an error of which code and status say nothing is permanent. Where an error says nothing, or
only something vague ("a connection failed"), its causes are asked, outermost first. Message text comes last: only the
fixed beginnings of messages that a client library wrote itself, since any other message may quote a document. An error
that is not known is `unknown`, and a call does not repeat it. The wait is the longest that any of them asks for.
"""

from __future__ import annotations

import errno as errnos
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from perdure.calls import tables
from perdure.calls.answer import Facts, answered, asked, facts_of, of_status, offered
from perdure.calls.retry_after import HINT_S_MAX
from perdure.calls.verdict import Kind, Verdict
from perdure.core.frozen import frozen
from perdure.errors import (
    DependencyDown,
    PerdureError,
    Permanent,
    Rescheduled,
    RetryLater,
    StoreBusy,
    StoreUnavailable,
    Transient,
)

#: So many errors are looked at, causes and members of groups together.
ERRORS_MAX = 64
MESSAGE_CHARS = 80
OBSTORE_CHARS = 4_000  # with the address of the object
SQLSTATE_CHARS = 5
GRAVITY: dict[Kind, int] = {"retryable": 0, "rate_limited": 1, "unknown": 2, "permanent": 3}

CANCELLED = Verdict("permanent", "cancelled")
UNREADABLE = Verdict("unknown", "unreadable")


def classify(error: BaseException) -> Verdict:
    """What this error means for the call that raised it. Never raises, whatever the error's attributes do.

    All members of an exception group count: it is as grave as the gravest of them.
    """
    try:
        verdict = _judge(error, set())
        return _as_asked(verdict, error) if verdict.passes else verdict
    except Exception:  # the error is foreign code: its properties and types may do anything
        return UNREADABLE


# --- which of an error and its causes counts -------------------------------------------------


def _judge(error: BaseException, seen: set[int]) -> Verdict:
    vague: Verdict | None = None
    first: Verdict | None = None
    for at in _chain(error, seen):
        verdict = _gravest(at, seen) if isinstance(at, BaseExceptionGroup) else _read(at)
        if at is not error and verdict.reason in tables.OURS:
            continue
        if vague is not None and not _refines(verdict):
            continue
        if verdict.kind != "unknown":
            verdict = verdict if vague is None else _refined(vague, verdict)
            if verdict.reason not in tables.VAGUE:
                return verdict
            vague = verdict
        first = first or verdict
    return vague or first or UNREADABLE


def _as_asked(verdict: Verdict, error: BaseException) -> Verdict:
    """Clients wrap errors and lose their headers: the longest wait that any of them asks for counts, and that any of
    them asks not to be tried again."""
    if not isinstance(error, BaseExceptionGroup) and _beneath(error) is None:
        return verdict  # its own headers are in it already
    hint_s, unwanted = verdict.hint_s, verdict.unwanted
    for at in _all(error, set()):
        wait_s, unasked = _asked(at)
        unwanted |= unasked
        if wait_s is not None:
            hint_s = wait_s if hint_s is None else max(hint_s, wait_s)
    if hint_s == verdict.hint_s:
        return verdict if unwanted == verdict.unwanted else replace(verdict, unwanted=unwanted)
    named_s = verdict.status == tables.UNAVAILABLE  # it named a time instead of doing it
    processed = verdict.processed and not named_s
    return replace(verdict, hint_s=hint_s, processed=processed, unwanted=unwanted)


def _asked(error: BaseException) -> tuple[float | None, bool]:
    if isinstance(error, PerdureError):
        return _own(error).hint_s, False
    if not isinstance(error, Exception):
        return None, False
    sheet = _sheet(type(error))  # type: ignore[arg-type]
    facts = facts_of(error, sheet.offers)
    return asked(facts, sheet.package) if facts else (None, False)


def _all(error: BaseException, seen: set[int]) -> Iterator[BaseException]:
    """The error, its causes, and the members of groups among them with theirs."""
    for at in _chain(error, seen):
        yield at
        if isinstance(at, BaseExceptionGroup):
            for member in at.exceptions:
                yield from _all(member, seen)


def _chain(error: BaseException, seen: set[int]) -> Iterator[BaseException]:
    """The error, then what it was raised from, without going in circles."""
    at: BaseException | None = error
    while at is not None and _unseen(at, seen):
        seen.add(id(at))
        yield at
        at = _beneath(at)


def _beneath(error: BaseException) -> BaseException | None:
    """What it was raised from, what it carries as an argument (some raise `from None` then), what was being handled."""
    if error.__cause__ is not None:
        return error.__cause__
    carried = next((arg for arg in error.args if isinstance(arg, BaseException)), None)
    if carried is not None:
        return carried
    return None if error.__suppress_context__ else error.__context__


def _unseen(error: BaseException, seen: set[int]) -> bool:
    return id(error) not in seen and len(seen) < ERRORS_MAX


def _refines(verdict: Verdict) -> bool:
    """A cause makes "a connection failed" more precise only with word of the connection."""
    return verdict.status is None and (verdict.kind == "retryable" or verdict.reason == "certificate")


def _refined(outer: Verdict, inner: Verdict) -> Verdict:
    """The cause's reason; whoever of the two is certain that nothing was carried out is right."""
    if inner.processed == (outer.processed and inner.processed):
        return inner
    return Verdict(inner.kind, inner.reason, inner.hint_s, outer.processed, inner.outage, code=inner.code)


def _gravest(group: BaseExceptionGroup[BaseException], seen: set[int]) -> Verdict:
    found = [_judge(member, seen) for member in group.exceptions if _unseen(member, seen)]
    if not found:
        return UNREADABLE
    gravest = max(
        found, key=lambda verdict: (GRAVITY[verdict.kind], verdict.hint_s or 0.0, verdict.processed)
    )
    if gravest.processed or not any(verdict.processed for verdict in found):
        return gravest
    return replace(gravest, processed=True)


# --- what one error says ---------------------------------------------------------------------


@frozen
class Sheet:
    """What is known of a type before any of its errors is seen."""

    name: str
    package: str
    listed: Verdict | None
    offers: frozenset[str]  # see `offered`


@lru_cache(maxsize=1_024)
def _sheet(kind: type[BaseException]) -> Sheet:
    names = [f"{str(cls.__module__).partition('.')[0]}.{cls.__name__}" for cls in kind.__mro__]
    listed = next((tables.TYPES[name] for name in names if name in tables.TYPES), None)
    return Sheet(kind.__name__, names[0].partition(".")[0], listed, offered(kind))


def _read(error: BaseException) -> Verdict:
    """What this error says by itself."""
    if isinstance(error, PerdureError):
        return _own(error)
    if not isinstance(error, Exception):
        return CANCELLED  # cancellation, Ctrl-C, exit: not the call's to repeat
    if isinstance(error, SyntaxError):
        return tables.VALIDATION  # parsers of documents raise it too, with a `code` that is no HTTP status
    sheet = _sheet(type(error))  # type: ignore[arg-type]  # mypy takes a class for its instance here
    facts = facts_of(error, sheet.offers)
    verdict = answered(facts, sheet.package) if facts else None
    if verdict is None or verdict.kind == "unknown":
        verdict = _database(facts) or _system(error, facts, sheet) or verdict or _spoken(error, sheet)
    return verdict or Verdict("unknown", sheet.name)


def _own(error: PerdureError) -> Verdict:
    code = error.code
    if isinstance(error, DependencyDown | Rescheduled):  # a call beneath has decided already
        return Verdict("permanent", code, processed=not isinstance(error, DependencyDown), code=code)
    if isinstance(error, RetryLater):
        return Verdict("rate_limited", "retry_later", _wait_s(error.delay_s), processed=False, code=code)
    if isinstance(error, Transient):
        return Verdict("retryable", "transient", _wait_s(error.retry_after_s), code=code)
    if isinstance(error, StoreBusy | StoreUnavailable):
        return Verdict("retryable", "store", outage=isinstance(error, StoreUnavailable), code=code)
    return Verdict("permanent", "permanent" if isinstance(error, Permanent) else code, code=code)


def _wait_s(asked: float | None) -> float | None:
    return min(asked, HINT_S_MAX) if asked is not None and asked >= 0 else None


def _database(facts: Facts) -> Verdict | None:
    """SQLSTATE, or SQLite's own code."""
    state = facts.get("sqlstate") or facts.get("pgcode")
    if isinstance(state, str) and len(state) == SQLSTATE_CHARS:
        listed = (tables.SQLSTATES[state[:n]] for n in (5, 3, 2) if state[:n] in tables.SQLSTATES)
        known = next(listed, None) or Verdict("unknown", f"sqlstate_{state[:2]}")
        return Verdict(known.kind, known.reason, None, known.processed, known.outage, code=state)
    code = facts.get("sqlite_errorcode")
    return tables.BUSY if isinstance(code, int) and code & 0xFF in tables.SQLITE_BUSY else None


def _system(error: Exception, facts: Facts, sheet: Sheet) -> Verdict | None:
    """Errno and type."""
    number = error.errno if isinstance(error, OSError) else None
    known = None if number is None else tables.ERRNOS.get(number)
    if known is not None and number is not None:
        code = errnos.errorcode.get(number)
        return Verdict(known.kind, known.reason, None, known.processed, known.outage, code=code)
    if sheet.listed is tables.TLS and "CERTIFICATE" in str(facts.get("reason")):
        return tables.CERTIFICATE
    return sheet.listed


def _spoken(error: Exception, sheet: Sheet) -> Verdict | None:
    """The last resort: how the message of a client library begins."""
    if sheet.package == "obstore":
        return _of_obstore(str(error.args[0] if error.args else "")[:OBSTORE_CHARS])
    if sheet.package not in tables.SPEAKING:
        return None
    words = str(error.args[0] if error.args else "")[:MESSAGE_CHARS].lower()
    return next((verdict for phrase, verdict in tables.PHRASES.items() if words.startswith(phrase)), None)


def _of_obstore(words: str) -> Verdict | None:
    _, found, rest = words.partition(tables.OBSTORE_STATUS)
    status = rest[:3]
    if found and status.isascii() and status.isdigit():
        told = of_status(int(status))
        return Verdict(told.kind, told.reason, None, told.processed, told.outage, int(status))
    return tables.CONNECTION if tables.OBSTORE_UNSENT in words else None

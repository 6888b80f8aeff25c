"""What to do about a group of dead documents: rules in order, the first that fits is given. Pure.

docs/dead.md has the same table for people.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum

from perdure.core.frozen import frozen
from perdure.errors import BLOBS_REFUSED

DAY_MS = 86_400_000
OLD_MS = 30 * DAY_MS


class Action(StrEnum):
    """What is suggested."""

    WAIT = "wait"
    REQUEUE = "requeue"
    FIX = "fix"  # what was handed in, or how the service is set up
    RAISE = "raise"  # a limit
    LOOK = "look"  # at the code
    PURGE = "purge"


@frozen
class Facts:
    """What is known of a group."""

    code: str
    error_type: str = ""
    status_code: int | None = None
    down: tuple[str, ...] = ()  # what its stage needs and is down
    needs: tuple[str, ...] = ()
    age_ms: int = 0  # of the last death
    stage: str = ""


@frozen
class Advice:
    """The action, and the sentence that says how."""

    action: Action
    text: str


@frozen
class Rule:
    """`when` is the condition in words; `text` may name {code}, {status}, {down}, {needs} and {install}."""

    when: str
    fits: Callable[[Facts], bool]
    action: Action
    text: str


EMPTY = frozenset({"document_empty", "content_empty", "image_empty"})
GONE = EMPTY | {"http_404", "http_410", "content_missing"}
INSTALL = {"ocr_needed": "tesseract-ocr", "heif_needed": "perdure[images]"}
LIMITS = frozenset({
    "stage_timeout", "no_progress", "crashed:memory_exceeded", "crashed:cpu_exceeded", "crashed:processes_exceeded",
    "too_large", "headers_too_large", "input_too_large", "document_bomb", "image_bomb",
})  # fmt: skip
PASSING = frozenset({
    "transient", "rescheduled", "retry_later", "rate_limited", "dependency_down", "dns_failed", "connection_failed",
    "fetch_timeout", "response_broken", "unanswered", "remote_failed", "sql_busy", "store_busy", "store_unavailable",
    "blobs_unavailable", "ocr_failed", "answer_invalid",
})  # fmt: skip
UNREACHED = frozenset({"dns_failed", "connection_failed"})
PUT_OFF = frozenset({"postpones_exhausted", "age_exceeded"})
WORKERS = frozenset({"worker_lost", "worker_stopped", "nursery_lost", "crashed:SIGTERM", "crashed:SIGKILL"})
CODE = frozenset({
    "unexpected", "contract_broken", "output_invalid", "result_invalid", "result_too_large", "row_invalid",
    "spawn_repeated", "item_key_invalid", "item_key_repeated", "context_misused", "saved_unreadable", "stage_absent",
    "unstorable", "embedding_invalid", "summary_invalid", "image_incomplete", "preload_failed",
})  # fmt: skip
_TROUBLE = re.compile(r"Timeout|Connect|Unavailable|Network|RateLimit|TooManyRequests")


def _status(facts: Facts) -> int:
    """The HTTP status, from the error or from its code; 0 if there was none."""
    if facts.status_code is not None:
        return facts.status_code
    found = re.fullmatch(r"http_(\d{3})", facts.code)
    return int(found[1]) if found else 0


def _passing(facts: Facts) -> bool:
    status = _status(facts)
    unexpected = facts.code == "unexpected" and _TROUBLE.search(facts.error_type) is not None
    return facts.code in PASSING or status in (408, 425, 429) or 500 <= status <= 599 or unexpected


RULES = (
    Rule(
        "a dependency of the stage is down or ramping",
        lambda f: bool(f.down), Action.WAIT,
        "{down} is down: wait until it is up (`perdure dependencies`), then requeue with a canary",
    ),
    Rule(
        "there is nothing to be had any more (`http_404`, `http_410`, empty, content lost), and the last one died more "
        "than 30 days ago",
        lambda f: f.code in GONE and f.age_ms > OLD_MS, Action.PURGE,
        "nothing is there any more, and nobody asked for 30 days: purge them (they are exported first)",
    ),
    Rule(
        "something is not installed (`ocr_needed`, `heif_needed`)",
        lambda f: f.code in INSTALL, Action.FIX,
        "install {install} where the workers run, then requeue",
    ),
    Rule(
        "a setting of a worker was invalid (`setting_invalid`)",
        lambda f: f.code in ("setting_invalid", "policy_invalid"), Action.FIX,
        "a setting of the workers is invalid and the error names it: correct it, start the workers again, then requeue",
    ),
    Rule(
        "the bucket of the blobs refused the key of a worker or its rights (`blobs_refused`)",
        lambda f: f.code == BLOBS_REFUSED, Action.FIX,
        "the bucket of the blobs refuses the key of the workers or its rights: set a valid key where they run and "
        "start them again, or give the key the rights that it lacks, then requeue",
    ),
    Rule(
        "the quota of a service is used up (`call_quota`)",
        lambda f: f.code == "call_quota", Action.FIX,
        "the quota of a service is used up and the error names it: raise it or wait for the next period, then requeue",
    ),
    Rule(
        "a service refused us (status 401, 403 or 407) and the stage needs it",
        lambda f: _status(f) in (401, 403, 407) and bool(f.needs), Action.FIX,
        "{needs} refuses us: put its key or rights right, then requeue",
    ),
    Rule(
        "a service does not accept our key, rights or its certificate (`call_unauthorized`)",
        lambda f: f.code == "call_unauthorized", Action.FIX,
        "a service refuses us and the error names it: put its key or rights right, then requeue",
    ),
    Rule(
        "a limit was reached (`stage_timeout`, `no_progress`, `too_large`, a bomb; memory, time, processes of a cell)",
        lambda f: f.code in LIMITS, Action.RAISE,
        "a limit was reached ({code}): look at one, raise the limit if the document is sound, then requeue",
    ),
    Rule(
        "a call may have been carried out (`maybe_done`)",
        lambda f: f.code == "maybe_done", Action.LOOK,
        "find out whether the call was carried out; requeue only if it was not",
    ),
    Rule(
        "the address that was handed in cannot be reached (`dns_failed`, `connection_failed` in the stage `fetch`)",
        lambda f: f.stage == "fetch" and f.code in UNREACHED, Action.FIX,
        "the address cannot be reached ({code}): check it; requeue if it is right and answers now, otherwise purge",
    ),
    Rule(
        "a service was in trouble (`rescheduled`, `rate_limited`, `connection_failed` and the like; status 408, 425, "
        "429 or 5xx; an exception called Timeout, Connect… or the like), and nothing that the stage needs is down",
        _passing, Action.REQUEUE,
        "the service was in trouble and is not known to be down: requeue with a canary",
    ),
    Rule(
        "it was put off for longer than allowed (`postpones_exhausted`, `age_exceeded`)",
        lambda f: f.code in PUT_OFF, Action.REQUEUE,
        "it waited for longer than it may: requeue; if that happens often, raise postpones_max or age_max_s",
    ),
    Rule(
        "a worker was lost or stopped with it (`worker_lost`, `crashed:SIGKILL`, `crashed:SIGTERM`)",
        lambda f: f.code in WORKERS, Action.REQUEUE,
        "workers were ended while they had it (by the system, for want of memory?): requeue with a canary",
    ),
    Rule(
        "the database refused a statement of the stage (`store_error`, `statement_undeclared`, `sql_…`)",
        lambda f: f.code in ("store_error", "statement_undeclared") or f.code.startswith("sql_"), Action.LOOK,
        "the database refused a statement of the stage ({code}) and the message says why: correct the statement, or "
        "make the table that it names, then requeue",
    ),
    Rule(
        "a service answered with another status from 400 to 499, and the code did not deal with it (`unexpected`)",
        lambda f: f.code == "unexpected" and 400 <= _status(f) <= 499, Action.FIX,
        "a service answered with status {status}: correct what is asked for, or what it is asked about, then requeue",
    ),
    Rule(
        "the stage did what it must not (`unexpected`, `contract_broken`, `output_invalid` …)",
        lambda f: f.code in CODE, Action.LOOK,
        "the code of the stage is at fault ({code}): the traceback says where; repair it, then requeue",
    ),
    Rule(
        "the stage's process crashed otherwise (`crashed:SIGSEGV`, `crashed:exit:1` …)",
        lambda f: f.code.startswith("crashed:"), Action.LOOK,
        "the process that ran the stage ended and left no traceback ({code}): run the stage on one of them by itself, "
        "repair what ends it, then requeue, or purge them",
    ),
    Rule(
        "a service refused what was asked of it, or what it was given or gave was invalid (`call_refused`, "
        "`call_invalid`)",
        lambda f: f.code in ("call_refused", "call_invalid"), Action.FIX,
        "the request was refused for good ({code}): the message says by which service and why; correct the request or "
        "the input, then requeue, or purge them",
    ),
    Rule(
        "documents of this type are not read (`type_unsupported`)",
        lambda f: f.code == "type_unsupported", Action.FIX,
        "files of this type are not read: add the content as a type that is (unpack an archive), and purge them",
    ),
    Rule(
        "there is nothing in it (`document_empty`, `content_empty`, `image_empty`)",
        lambda f: f.code in EMPTY, Action.FIX,
        "there is nothing to read in it ({code}): look at the source; add it again once it has content, or purge it",
    ),
    Rule(
        "anything else: the input was refused (`document_corrupt`, `http_404`, a code of yours)",
        lambda f: True, Action.FIX,
        "the input was refused ({code}): hand it in repaired, or purge it",
    ),
)  # fmt: skip


def advise(facts: Facts) -> Advice:
    """What to do about a group."""
    rule = next(rule for rule in RULES if rule.fits(facts))
    text = rule.text.format(
        code=facts.code, status=_status(facts), down=", ".join(facts.down), needs=", ".join(facts.needs),
        install=INSTALL.get(facts.code, ""),
    )  # fmt: skip
    return Advice(rule.action, text)

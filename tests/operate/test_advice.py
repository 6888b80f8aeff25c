"""The table of advice, row by row; docs/dead.md says the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.operate.advice import DAY_MS, RULES, Action, Facts, advise

DOCS = Path(__file__).parents[2] / "docs" / "dead.md"

#: Facts, and the number of the rule that fits first.
CASES = [
    (Facts("http_503", down=("openai",), needs=("openai",)), 0, Action.WAIT),
    (Facts("unexpected", "ValueError", down=("ocr", "openai")), 0, Action.WAIT),
    (Facts("http_404", age_ms=31 * DAY_MS), 1, Action.PURGE),
    (Facts("content_missing", age_ms=31 * DAY_MS), 1, Action.PURGE),
    (Facts("ocr_needed", age_ms=31 * DAY_MS), 2, Action.FIX),
    (Facts("setting_invalid", "SettingInvalid"), 3, Action.FIX),
    (Facts("blobs_refused", "StoreUnavailable"), 4, Action.FIX),
    (Facts("call_quota", "RateLimitError", 429, needs=("openai",)), 5, Action.FIX),
    (Facts("call_quota", "ClientError", 403, needs=("vision",)), 5, Action.FIX),
    (Facts("unexpected", "AuthenticationError", 401, needs=("openai",)), 6, Action.FIX),
    (Facts("call_unauthorized", "AuthenticationError", 401, needs=("openai",)), 6, Action.FIX),
    (Facts("call_unauthorized", "AuthenticationError", 401), 7, Action.FIX),
    (Facts("call_unauthorized", "NoCredentialsError"), 7, Action.FIX),
    (Facts("stage_timeout"), 8, Action.RAISE),
    (Facts("crashed:memory_exceeded"), 8, Action.RAISE),
    (Facts("image_bomb"), 8, Action.RAISE),
    (Facts("maybe_done", status_code=503), 9, Action.LOOK),
    (Facts("dns_failed", stage="fetch"), 10, Action.FIX),
    (Facts("connection_failed", stage="fetch"), 10, Action.FIX),
    (Facts("rescheduled", needs=("openai",)), 11, Action.REQUEUE),
    (Facts("http_429"), 11, Action.REQUEUE),
    (Facts("blobs_unavailable"), 11, Action.REQUEUE),
    (Facts("bad_gateway", "HTTPStatusError", 502), 11, Action.REQUEUE),
    (Facts("unexpected", "ReadTimeout"), 11, Action.REQUEUE),
    (Facts("postpones_exhausted"), 12, Action.REQUEUE),
    (Facts("worker_lost"), 13, Action.REQUEUE),
    (Facts("crashed:SIGKILL"), 13, Action.REQUEUE),
    (Facts("store_error", "StoreError"), 14, Action.LOOK),
    (Facts("statement_undeclared"), 14, Action.LOOK),
    (Facts("unexpected", "HTTPStatusError", 404), 15, Action.FIX),
    (Facts("unexpected", "KeyError"), 16, Action.LOOK),
    (Facts("crashed:SIGSEGV"), 17, Action.LOOK),
    (Facts("contract_broken"), 16, Action.LOOK),
    (Facts("call_refused", "BadRequestError", 400, needs=("openai",)), 18, Action.FIX),
    (Facts("call_refused", "InternalServerError", 503), 11, Action.REQUEUE),
    (Facts("call_invalid", "ValidationError"), 18, Action.FIX),
    (Facts("type_unsupported"), 19, Action.FIX),
    (Facts("document_empty", age_ms=29 * DAY_MS), 20, Action.FIX),
    (Facts("http_404", age_ms=29 * DAY_MS), 21, Action.FIX),
    (Facts("http_401"), 21, Action.FIX),
    (Facts("document_corrupt"), 21, Action.FIX),
    (Facts("a_code_of_ours"), 21, Action.FIX),
    (Facts("dns_failed", stage="ask"), 11, Action.REQUEUE),
]


@pytest.mark.parametrize(("facts", "number", "action"), CASES)
def test_the_first_rule_that_fits_is_given(facts: Facts, number: int, action: Action) -> None:
    assert next(n for n, rule in enumerate(RULES) if rule.fits(facts)) == number
    advice = advise(facts)
    assert advice.action is action
    assert "{" not in advice.text


def test_every_rule_has_a_case_and_every_action_a_rule() -> None:
    assert {number for _, number, _ in CASES} == set(range(len(RULES)))
    assert {rule.action for rule in RULES} == set(Action)


def test_what_left_no_traceback_is_not_said_to_have_one() -> None:
    for code in ("crashed:SIGSEGV", "crashed:exit:9"):
        text = advise(Facts(code)).text
        assert code in text
        assert "left no traceback" in text


def test_what_is_down_and_what_to_install_is_named() -> None:
    assert "ocr, openai is down" in advise(Facts("x", down=("ocr", "openai"))).text
    assert "tesseract-ocr" in advise(Facts("ocr_needed")).text
    assert "openai refuses us" in advise(Facts("unexpected", "", 403, needs=("openai",))).text


def test_people_read_the_same_table() -> None:
    rows = [line for line in DOCS.read_text().splitlines() if line.startswith("| ")]
    told = [row for row in rows if row.rsplit("|", 2)[-2].strip(" *`") in set(Action)]
    assert told == [f"| {rule.when} | `{rule.action}` |" for rule in RULES]


def test_no_advice_sends_to_the_command_that_shows_it() -> None:
    for rule in RULES:
        assert "dead inspect" not in rule.text
        assert "dead groups" not in rule.text

"""Failures of one cause form one group whatever document they hit, and hashes cannot be fooled."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.fingerprint import digest, failure_fingerprint, normalised
from perdure.core.outcome import Failure, describe
from perdure.errors import Permanent, RateLimited, Transient

SAME_CAUSE = [
    pytest.param("timed out after 30 s", "timed out after 31.5 s", id="numbers"),
    pytest.param("page 3 of 20 is broken", "page 17 of 1,024 is broken", id="grouped numbers"),
    pytest.param("at 12:30:01 it stopped", "at 09:00 it stopped", id="times"),
    pytest.param(
        "no row 0190f3c2-1111-7abc-8def-0123456789ab",
        "no row FFFFFFFF-1111-4ABC-8DEF-0123456789AB",
        id="uuids",
    ),
    pytest.param(
        "blob 9f86d081884c7d659a2feaa0c55ad015 is gone",
        "blob 0cc175b9c0f1b6a831c399e269772661 is gone",
        id="digests",
    ),
    pytest.param("object at 0x7f3a2b10", "object at 0x1", id="addresses"),
    pytest.param(
        "GET https://a.example/x?id=1 refused", "GET http://other.example:8080/y#top refused", id="urls"
    ),
    pytest.param("cannot open s3://bucket/a/b", "cannot open s3://other/c", id="bucket urls"),
    pytest.param("cannot open /srv/in/dune.epub", "cannot open /tmp/x/y/emma.epub", id="paths"),
    pytest.param("no field 'title' in answer", 'no field "sub title" in answer', id="quotes"),
    pytest.param("bad\n  line  1", "bad line 2", id="white space"),
    pytest.param("doc-17 failed", "doc-4711 failed", id="keys"),
    pytest.param(
        "the name gone.example cannot be resolved",
        "the name www.other-one.test cannot be resolved",
        id="hosts",
    ),
    pytest.param(
        "connect to db1.internal:5432 refused", "connect to 10.0.0.7:6432 refused", id="hosts and ports"
    ),
    pytest.param("connect to redis:6379 refused", "connect to [::1]:6380 refused", id="short hosts"),
    pytest.param("no mail for ann@a.example", "no mail for bob.b@other.example", id="mail"),
    pytest.param("cannot open in/a/dune.epub", "cannot open C:\\books\\emma.epub", id="other paths"),
]


@pytest.mark.parametrize(("one", "other"), SAME_CAUSE)
def test_the_same_cause_in_another_document_is_the_same_group(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)
    assert failure_fingerprint("fetch", "OSError", one) == failure_fingerprint("fetch", "OSError", other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("fetch", "OSError", "reset"), ("embed", "OSError", "reset")),
        (("fetch", "OSError", "reset"), ("fetch", "ValueError", "reset")),
        (("fetch", "OSError", "connection reset"), ("fetch", "OSError", "connection refused")),
        (("fetch", "OSError", ""), ("fetchOSError", "", "")),
    ],
    ids=["stage", "type", "message", "moved text"],
)
def test_another_stage_type_or_message_is_another_group(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    assert failure_fingerprint(*one) != failure_fingerprint(*other)


def test_a_message_that_speaks_of_429_changes_neither_class_nor_code() -> None:
    plain = describe("fetch", ValueError("bad input"))
    hostile = describe("fetch", ValueError("HTTP 429 Too Many Requests, Retry-After: 1, Permanent"))
    assert (hostile.error_type, hostile.code, hostile.status_code) == (
        plain.error_type,
        plain.code,
        plain.status_code,
    )


def test_a_failure_groups_by_its_stage_type_and_message_only() -> None:
    one = Failure("fetch", "OSError", "unexpected", "reset after 3 s", 500)
    other = Failure("fetch", "OSError", "transient", "reset after 4 s", None)
    assert one.fingerprint == other.fingerprint


@pytest.mark.parametrize("error", [Transient("x 1"), RateLimited("x 1"), Permanent("x", "x 1")])
def test_our_own_errors_group_by_class(error: Exception) -> None:
    described = describe("fetch", error)
    assert described.fingerprint == failure_fingerprint("fetch", type(error).__name__, "x 2")


def test_an_apostrophe_is_not_an_opening_quote() -> None:
    assert normalised("can't read page 3 of 'a.pdf'") == normalised("can't read page 4 of 'b.pdf'")
    assert normalised("it isn't there") != normalised("it can't be there")


def test_a_long_address_does_not_hide_what_follows_it() -> None:
    long, short = f"GET https://a.example/{'x' * 900} refused", "GET https://a.example/ refused"
    assert normalised(long) == normalised(short)


def test_broken_unicode_in_a_message_still_has_a_fingerprint() -> None:
    assert len(failure_fingerprint("fetch", "OSError", "cannot open \udcff\ud800.pdf")) == 16


@given(st.text(max_size=600), st.text(max_size=20))
def test_any_message_has_a_short_stable_fingerprint(message: str, stage: str) -> None:
    made = failure_fingerprint(stage, "E", message)
    assert made == failure_fingerprint(stage, "E", message)
    assert len(made) == 16


@given(st.text(max_size=300))
def test_normalising_is_stable_and_leaves_no_digit_or_line_break(message: str) -> None:
    once = normalised(message)
    assert not any(c in "0123456789\n" for c in once)


@pytest.mark.parametrize(
    "evil", ["/a" * 100_000, "a.-" * 70_000, "'" * 200_000, "a" * 200_000 + ":", "0" * 200_000]
)
def test_a_hostile_message_costs_next_to_nothing(evil: str) -> None:
    began_s = time.process_time()
    normalised(evil)
    assert time.process_time() - began_s < 5


# --- digest ----------------------------------------------------------------------------------


def test_text_moved_from_one_part_to_the_next_changes_the_digest() -> None:
    assert digest("ab", "c") != digest("a", "bc")
    assert digest("ab") != digest("ab", "")
    assert digest() != digest("")


def test_nothing_is_not_the_word_none() -> None:
    assert len({digest(None), digest(""), digest("None"), digest("none")}) == 4


@given(st.lists(st.text(max_size=8), max_size=4), st.lists(st.text(max_size=8), max_size=4))
def test_digests_agree_only_for_equal_parts(one: list[str], other: list[str]) -> None:
    assert (digest(*one) == digest(*other)) == (one == other)


def test_the_host_that_is_the_dependency_stays() -> None:
    one, other = "api.one.example:443 is away", "api.two.example:443 is away"
    assert failure_fingerprint("embed", "OSError", one) == failure_fingerprint("embed", "OSError", other)
    fingerprints = {
        failure_fingerprint("embed", "OSError", one, "api.one.example"),
        failure_fingerprint("embed", "OSError", other, "api.two.example"),
    }
    assert len(fingerprints) == 2
    assert normalised("llm.example failed for x.example", "llm.example") == "llm.example failed for <host>"

"""Retry-After and its kin: every legal form exactly, every hostile form as if it were not there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.message import Message
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.calls.retry_after import HINT_S_MAX, hint_s

NOW = datetime(2026, 11, 16, 2, 20, 0, tzinfo=UTC)
NOW_S = NOW.timestamp()
MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()


def imf(at: datetime) -> str:
    return f"{DAYS[at.weekday()][:3]}, {at.day:02} {MONTHS[at.month - 1]} {at.year:04} {at:%H:%M:%S} GMT"


def rfc850(at: datetime) -> str:
    return f"{DAYS[at.weekday()]}, {at.day:02}-{MONTHS[at.month - 1]}-{at.year % 100:02} {at:%H:%M:%S} GMT"


def asctime(at: datetime) -> str:
    return f"{DAYS[at.weekday()][:3]} {MONTHS[at.month - 1]} {at.day:2} {at:%H:%M:%S} {at.year:04}"


def asked(value: object, **others: object) -> float | None:
    return hint_s({"Retry-After": value, **others}, NOW_S)


@pytest.fixture(params=["UTC", "America/New_York", "Asia/Tokyo"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("value", "seconds"), [("0", 0), ("1", 1), ("120", 120), (" 7\t", 7), ("1.5", 1.5), ("007", 7)]
)
def test_seconds(value: str, seconds: float) -> None:
    assert asked(value) == seconds


@pytest.mark.parametrize("form", [imf, rfc850, asctime])
@pytest.mark.usefixtures("zone")
def test_every_form_of_a_date_is_in_gmt_whatever_our_zone_is(form: Any) -> None:
    assert asked(form(NOW + timedelta(seconds=90))) == 90


@pytest.mark.parametrize("form", [imf, rfc850, asctime])
def test_a_date_that_has_passed_means_now(form: Any) -> None:
    assert asked(form(NOW - timedelta(days=400))) == 0.0


def test_two_digits_of_a_year_far_ahead_mean_the_past() -> None:
    assert asked("Sunday, 06-Nov-94 08:49:37 GMT") == 0.0
    assert asked("Sunday, 16-Nov-76 02:20:00 GMT") == HINT_S_MAX  # 50 years ahead is still ahead


def test_a_leap_second_is_legal() -> None:
    at = datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC)
    assert asked("Thu, 31 Dec 2026 23:59:60 GMT") == (at - NOW).total_seconds() + 1


def test_an_offset_is_taken_into_account() -> None:
    assert asked("Mon, 16 Nov 2026 03:21:00 +0100") == 60


def test_a_date_is_measured_by_the_clock_of_the_service() -> None:
    theirs = NOW + timedelta(hours=3)  # our clock is three hours behind theirs
    assert asked(imf(theirs + timedelta(seconds=30)), Date=imf(theirs)) == 30
    theirs = NOW - timedelta(hours=3)  # by our clock the date has passed
    assert asked(imf(theirs + timedelta(seconds=30)), Date=imf(theirs)) == 30
    assert asked("5", Date=imf(theirs)) == 5


def test_a_senseless_date_of_the_service_is_ignored() -> None:
    assert asked(imf(NOW + timedelta(seconds=30)), Date="yesterday") == 30


@pytest.mark.parametrize(
    "junk",
    [
        "", " ", "-1", "-0.5", "+5", "1_000", "²", "٣", "１２", "1e3", "inf", "nan", "Infinity", "0x10", "5s", "5 6",
        ".5", "5.", "1.2.3", "soon", "Mon, 99 Oct 2026 00:00:00 GMT", "Mon, 31 Feb 2026 00:00:00 GMT",
        "Mon, 16 Nov 2026 25:00:00 GMT", "Mon, 16 Foo 2026 02:20:00 GMT", "Mon, 16 Nov 2026 02:20:00 PST",
        "Mon, 16 Nov 26 02:20:00 GMT", "2026-11-16T02:20:00Z", "Mon, 16 Nov 0000 02:20:00 GMT", "\x00", "5\n",
        None, True, [], {}, object(),
    ],
)  # fmt: skip
def test_junk_is_as_if_it_were_not_there(junk: object) -> None:
    assert asked(junk) is None


@pytest.mark.parametrize("digits", [20, 308, 309, 400])
def test_a_huge_number_is_the_longest_wait(digits: int) -> None:
    assert asked("9" * digits) == HINT_S_MAX
    assert hint_s({"retry-after-ms": "9" * digits}) == HINT_S_MAX
    assert asked(int("9" * digits)) == HINT_S_MAX


def test_milliseconds_and_seconds_the_longer_one_counts() -> None:
    assert hint_s({"retry-after-ms": "1500", "retry-after": "9"}) == 9.0
    assert hint_s({"Retry-After-Ms": "0.5"}) == 0.0005
    assert hint_s({"retry-after-ms": "junk", "retry-after": "9"}) == 9
    assert hint_s({"retry-after-ms": "-3"}) is None
    assert hint_s({"x-amz-retry-after": "250"}) == 0.25


@pytest.mark.parametrize(
    "headers",
    [
        {"retry-after": "5"},
        {"RETRY-AFTER": "5"},
        {b"Retry-After": b"5"},
        {"Retry-After": 5},
        {"Retry-After": 5.0},
        {"Retry-After": ["3", "5"]},
        [("Retry-After", "3"), ("retry-after", "5"), ("retry-after", "junk")],
        [(b"retry-after", b"5")],
        (("Retry-After", "5"),),
        httpx2.Headers([("Retry-After", "3"), ("Retry-After", "5")]),
        {"retry-after": "3, 5"},  # as a client library joins them
        {"retry-after": "3, Mon, 16 Nov 2026 02:20:05 GMT"},
    ],
)
def test_headers_of_every_shape_and_the_longest_wins(headers: object) -> None:
    assert hint_s(headers, NOW_S) == 5


def test_headers_of_the_standard_library() -> None:
    message = Message()
    message["Retry-After"] = "3"
    message["Retry-After"] = "5"
    assert hint_s(message) == 5


class Hostile:
    def items(self) -> Iterator[tuple[object, object]]:
        yield "retry-after", "4"
        raise RuntimeError("broken")

    def __bool__(self) -> bool:
        raise RuntimeError("broken")


def test_what_was_read_before_it_broke_counts() -> None:
    assert hint_s(Hostile()) == 4


@pytest.mark.parametrize(
    "headers", [None, 5, "retry-after", object(), [1, 2], [("a",)], [("a", "b", "c")], {}, b""]
)
def test_what_are_no_headers_asks_for_nothing(headers: object) -> None:
    assert hint_s(headers) is None


def test_without_a_clock_the_present_is_meant() -> None:
    wait = hint_s({"retry-after": imf(datetime.now(UTC) + timedelta(seconds=60))})
    assert wait is not None
    assert 55 < wait <= 60


def test_endless_headers_end() -> None:
    def endless() -> Iterator[tuple[str, str]]:
        while True:
            yield "retry-after", "1"

    assert hint_s(endless()) == 1


seconds = st.integers(min_value=0, max_value=int(HINT_S_MAX))


@given(seconds)
def test_whole_seconds_are_exact(wait: int) -> None:
    assert asked(str(wait)) == wait


@given(st.integers(min_value=0, max_value=30 * 365 * 86_400), st.sampled_from([imf, rfc850, asctime]))
def test_dates_are_exact(ahead: int, form: Any) -> None:
    assert asked(form(NOW + timedelta(seconds=ahead))) == min(ahead, HINT_S_MAX)


anything = st.one_of(
    st.none(),
    st.text(),
    st.binary(),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.lists(st.text(), max_size=3),
)
names = st.one_of(anything, st.sampled_from(["Retry-After", "retry-after-ms", "Date", b"Retry-After"]))
digits = st.text(alphabet="0123456789 .,:-+eE_²٣GMTSunov", max_size=40)


@given(st.lists(st.tuples(names, st.one_of(anything, digits)), max_size=8), st.floats(0, 1e11))
def test_never_raises_and_is_never_negative(pairs: list[tuple[Any, Any]], now_s: float) -> None:
    wait = hint_s(pairs, now_s)
    assert wait is None or 0.0 <= wait <= HINT_S_MAX

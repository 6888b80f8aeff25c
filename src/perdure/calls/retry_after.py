"""How long a service asked us to wait, read from the headers of its answer.

Every legal form is understood and nothing else is: seconds, the three forms of an HTTP date, and milliseconds under the
names that services use for them. Whatever is not legal is as if it were not there. Never raises, never negative.
"""

from __future__ import annotations

import re
import time
from calendar import timegm
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any

#: Nobody waits longer; a number of 400 digits becomes this one.
DAY_S = 86_400.0
HINT_S_MAX = 10 * 365.25 * 86_400.0
PUSHBACK = "grpc-retry-pushback-ms"
MILLISECONDS = ("retry-after-ms", "x-ms-retry-after-ms", "x-amz-retry-after", PUSHBACK)
SECONDS = "retry-after"
DATE = "date"
WISH = "x-should-retry"
#: All that a call wants to know of an answer's headers.
WANTED = frozenset({*MILLISECONDS, SECONDS, DATE, WISH})

HEADERS_MAX = 500
VALUE_CHARS_MAX = 1_000
CENTURY = 100
CENTURY_AHEAD = 50

# [0-9] and not \d: digits of other scripts are not digits here.
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_MONTHS = {
    name: number for number, name in enumerate("jan feb mar apr may jun jul aug sep oct nov dec".split(), 1)
}
_CLOCK = r"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})"
_ZONE = r"(?: (?:gmt|utc|z|(?P<sign>[+-])(?P<zone_hour>[0-9]{2})(?P<zone_minute>[0-9]{2})))?"
_DATES = (
    re.compile(
        rf"[a-z]{{3}}, (?P<day>[0-9]{{1,2}}) (?P<month>[a-z]{{3}}) (?P<year>[0-9]{{4}}) {_CLOCK}{_ZONE}"
    ),
    re.compile(
        rf"[a-z]{{6,9}}, (?P<day>[0-9]{{2}})-(?P<month>[a-z]{{3}})-(?P<short>[0-9]{{2}}) {_CLOCK}{_ZONE}"
    ),
    re.compile(
        rf"[a-z]{{3}} (?P<month>[a-z]{{3}}) (?P<day> [0-9]|[0-9]{{2}}) {_CLOCK} (?P<year>[0-9]{{4}}){_ZONE}"
    ),
)


def hint_s(headers: object, now_s: float | None = None) -> float | None:
    """The seconds to wait that these headers ask for, or None; of several legal ones the longest.

    A date is measured from the answer's own `Date` where it has one, since two clocks seldom agree, else from `now_s`
    (seconds since 1970, the present by default). A date that has passed means 0.
    """
    return hint_of(fields(headers), now_s)


def hint_of(found: Mapping[str, list[str]], now_s: float | None = None) -> float | None:
    """The same for headers that `fields` has read."""
    waits = [value_s for name in MILLISECONDS for value_s in _numbers(found.get(name, ()), 1_000.0)]
    asked = [part for value in found.get(SECONDS, ()) for part in _parts(value)]
    waits += _numbers(asked, 1.0)
    dates = [at_s for part in asked if (at_s := date_s(part, now_s)) is not None]
    if dates:
        present_s = time.time() if now_s is None else now_s
        sent = [at_s for value in found.get(DATE, ()) if (at_s := date_s(value, now_s)) is not None]
        if sent and abs(sent[0] - present_s) < DAY_S:  # a clock that is days off is no clock
            present_s = sent[0]
        waits.append(min(max(max(dates) - present_s, 0.0), HINT_S_MAX))
    return max(waits, default=None)


def fields(headers: object) -> dict[str, list[str]]:
    """The values of the headers we want, by lower-case name; {} for what cannot be read as headers."""
    found: dict[str, list[str]] = {}
    if headers is None:
        return found
    try:
        for name, value in islice(_pairs(headers), HEADERS_MAX):
            key = _text(name).lower()
            if key in WANTED:
                values = value if isinstance(value, list | tuple) else (value,)
                found.setdefault(key, []).extend(_text(one).strip(" \t") for one in values)
    except Exception:  # headers can be any object: what was read before it broke still counts
        return found
    return found


def unwanted(found: Mapping[str, list[str]]) -> bool:
    """Whether the service asked not to be asked again; headers as `fields` has read them."""
    pushed_back = any(value.startswith("-") for value in found.get(PUSHBACK, ()))
    return pushed_back or any(value.lower() == "false" for value in found.get(WISH, ()))


def date_s(text: str, now_s: float | None = None) -> float | None:
    """Seconds since 1970 of an HTTP date in any of its three forms; without a zone it is GMT, whatever ours is."""
    if len(text) > VALUE_CHARS_MAX:
        return None
    lower = text.strip(" \t").lower()
    match = next((found for form in _DATES if (found := form.fullmatch(lower))), None)
    if match is None or match["month"] not in _MONTHS:
        return None
    part = match.groupdict()
    year = int(part["year"]) if part.get("year") else _full_year(int(part["short"]), now_s)
    second = int(part["second"])
    leap = second == 60  # a leap second is legal
    try:
        moment = datetime(
            year,
            _MONTHS[part["month"]],
            int(part["day"]),
            int(part["hour"]),
            int(part["minute"]),
            second - leap,
        )
    except ValueError:
        return None
    ahead_s = int(part["zone_hour"] or 0) * 3_600 + int(part["zone_minute"] or 0) * 60
    return float(timegm(moment.timetuple()) + leap - (-ahead_s if part["sign"] == "-" else ahead_s))


def _full_year(short: int, now_s: float | None) -> int:
    """Two digits that seem to lie more than 50 years ahead mean the past (RFC 9110, 5.6.7)."""
    this_year = time.gmtime(now_s).tm_year
    year = this_year - this_year % CENTURY + short
    return year - CENTURY if year > this_year + CENTURY_AHEAD else year


def _numbers(values: Iterable[str], per_s: float) -> Iterator[float]:
    for value in values:
        if (asked := number(value.strip(" \t"))) is not None:
            yield min(asked / per_s, HINT_S_MAX)


def number(text: str) -> float | None:
    """A decimal number without a sign, of any length up to a bound; None for any other text."""
    return float(text) if len(text) <= VALUE_CHARS_MAX and _NUMBER.fullmatch(text) else None


def _parts(value: str) -> list[str]:
    """Several headers that a client library joined with commas; the comma after a weekday is part of its date."""
    parts: list[str] = []
    for piece in value[: VALUE_CHARS_MAX + 1].split(","):
        if parts and parts[-1].strip().isalpha():
            parts[-1] += "," + piece
        else:
            parts.append(piece)
    return parts


def _pairs(headers: Any) -> Iterator[tuple[object, object]]:
    for method in ("multi_items", "items"):  # the first keeps repeated headers apart (httpx)
        pairs = getattr(headers, method, None)
        if callable(pairs):
            yield from pairs()
            return
    yield from headers


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, float):
        return f"{value:f}"
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""

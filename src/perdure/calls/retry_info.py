"""How long a service of Google asked us to wait: `google.rpc.RetryInfo` in JSON, as an object, or in gRPC's trailers.

REST   {"error": {"details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "3.5s"}]}}
gRPC   the trailers `google.rpc.retryinfo-bin` (a RetryInfo) and `grpc-status-details-bin` (a Status that holds one)

The text is foreign: it is read once, up to a bound, and anything that is not legal is as if it were not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from perdure.calls.retry_after import HINT_S_MAX, number

DETAILS_MAX = 50
TRAILER_BYTES_MAX = 65_536
VARINT_BYTES_MAX = 10
NAME = "google.rpc.RetryInfo"
_WIDTHS = {1: 8, 5: 4}  # of fields that have a fixed one
_INFO, _STATUS = "google.rpc.retryinfo-bin", "grpc-status-details-bin"


def delay_s(*holders: object) -> float | None:
    """The longest wait that these bodies and lists of details ask for, or None."""
    details = (detail for holder in holders for detail in islice(_details(holder), DETAILS_MAX))
    return max((s for detail in details if (s := _of_detail(detail)) is not None), default=None)


def trailer_s(metadata: object) -> float | None:
    """The longest wait that the trailers of a gRPC call ask for, or None."""
    if not isinstance(metadata, Iterable):
        return None
    found: list[float] = []
    for pair in islice(metadata, DETAILS_MAX):
        key, value = pair[0], pair[1]
        if not isinstance(value, bytes) or len(value) > TRAILER_BYTES_MAX:
            continue
        if key == _INFO:
            found += _infos([value])
        elif key == _STATUS:
            anys = (dict(_fields(one)) for one in _each(value, 3))
            found += _infos(a[2] for a in anys if a.get(1, b"").endswith(NAME.encode()) and 2 in a)
    return max(found, default=None)


def _details(holder: object) -> Iterator[object]:
    """The details in the body of an error, or in what a client made of them."""
    if isinstance(holder, list | tuple):
        for one in holder[:DETAILS_MAX]:
            if isinstance(one, dict) and "error" in one:  # some services wrap the body in a list
                yield from _details(one)
            else:
                yield one
    elif isinstance(holder, dict):
        error = holder.get("error", holder)
        details = error.get("details") if isinstance(error, dict) else None
        if isinstance(details, list):
            yield from details[:DETAILS_MAX]


def _of_detail(detail: Any) -> float | None:
    if isinstance(detail, dict):
        asked = detail.get("retryDelay")
        if not str(detail.get("@type", "")).endswith(NAME) or not isinstance(asked, str):
            return None
        seconds = number(asked[:-1]) if asked.endswith("s") else None
        return None if seconds is None else min(seconds, HINT_S_MAX)
    if type(detail).__name__ != "RetryInfo":
        return None
    delay = detail.retry_delay
    return _seconds(delay.seconds, delay.nanos)


def _seconds(seconds: object, nanos: object) -> float | None:
    if not isinstance(seconds, int) or not isinstance(nanos, int):
        return None
    waited_s = seconds + nanos / 1e9
    return min(waited_s, HINT_S_MAX) if waited_s >= 0 else None


# --- protobuf, as much as these messages need ----------------------------------------------------


def _infos(messages: Iterable[Any]) -> list[float]:
    """The waits of encoded RetryInfos: field 1 is a Duration, whose fields are seconds and nanoseconds."""
    durations = (one for message in messages if isinstance(message, bytes) for one in _each(message, 1))
    found = (dict(_fields(duration)) for duration in durations)
    return [s for d in found if (s := _seconds(d.get(1, 0), d.get(2, 0))) is not None]


def _each(message: bytes, number_: int) -> Iterator[bytes]:
    return (value for field, value in _fields(message) if field == number_ and isinstance(value, bytes))


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message up to its end, or to the first byte that does not belong there."""
    at = 0
    while 0 <= at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        value, size = 0, _WIDTHS.get(kind, 0)
        if kind in (0, 2) and at >= 0:
            value, at = _varint(message, at)
            size = value if kind == 2 else 0
        if at < 0 or kind not in (0, 1, 2, 5) or not 0 <= size <= len(message) - at:
            return
        yield tag >> 3, value if kind == 0 else message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A number and where it ends, -1 if it does not end; negative ones are 64 bits wide."""
    value = 0
    for n, byte in enumerate(message[at : at + VARINT_BYTES_MAX] if at >= 0 else b""):
        value |= (byte & 0x7F) << 7 * n
        if byte < 0x80:
            value &= (1 << 64) - 1
            return value - (1 << 64) if value >> 63 else value, at + n + 1
    return 0, -1

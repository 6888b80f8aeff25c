"""Which of an error, its causes and the members of a group counts; and errors that fight back."""

from __future__ import annotations

import errno
import time
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.calls.classify import ERRORS_MAX, classify
from perdure.calls.verdict import Verdict
from perdure.errors import Permanent
from tests.calls.errors_at_hand import Answer, ServiceError, chained

# --- causes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("explicit", [True, False])
def test_an_unknown_error_means_what_its_cause_means(explicit: bool) -> None:
    error = chained(RuntimeError("x"), LookUpFailed(), ServiceError(status=503), explicit=explicit)
    assert classify(error) == Verdict("retryable", "status_503", outage=True, status=503)


class LookUpFailed(Exception):
    pass


def test_the_outermost_that_decides_counts() -> None:
    assert classify(chained(Permanent("bad"), ConnectionResetError())).kind == "permanent"
    assert classify(chained(ServiceError(status=404), ConnectionResetError())).kind == "permanent"
    assert classify(chained(KeyError("x"), ConnectionResetError())).reason == "programming_error"


def test_a_suppressed_context_is_not_looked_at() -> None:
    error = RuntimeError("x")
    error.__context__, error.__suppress_context__ = ConnectionResetError(), True
    assert classify(error).kind == "unknown"


def test_what_was_merely_being_handled_says_nothing() -> None:
    assert classify(chained(httpx2.ReadError("x"), KeyError("cache"), explicit=False)).reason == "connection"
    assert classify(chained(httpx2.ReadError("x"), ServiceError(status=400), explicit=False)).again
    assert classify(chained(RuntimeError("x"), KeyError("cache"), explicit=False)).kind == "unknown"


def test_a_circle_of_causes_ends() -> None:
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__cause__, second.__cause__ = second, first
    assert classify(first).kind == "unknown"
    alone = RuntimeError("c")
    alone.__context__ = alone
    assert classify(alone).kind == "unknown"


def test_an_endless_chain_of_causes_ends() -> None:
    errors = [RuntimeError(str(n)) for n in range(ERRORS_MAX)]
    assert classify(chained(*errors, ConnectionResetError())).kind == "unknown"
    assert classify(chained(*errors[1:], ConnectionResetError())).kind == "retryable"


# --- groups ---------------------------------------------------------------------------------


def test_a_group_is_as_grave_as_its_gravest() -> None:
    reset, busy, wrong = ConnectionResetError(), ServiceError(status=429), ServiceError(status=400)
    assert classify(ExceptionGroup("x", [reset])).reason == "connection_reset"
    both = classify(ExceptionGroup("x", [reset, busy]))
    assert (both.kind, both.processed) == ("rate_limited", True)  # one of them may have been carried out
    assert classify(ExceptionGroup("x", [reset, ExceptionGroup("y", [busy, wrong])])).kind == "permanent"
    assert classify(ExceptionGroup("x", [reset, RuntimeError("who knows")])).kind == "unknown"
    assert classify(BaseExceptionGroup("x", [reset, KeyboardInterrupt()])).reason == "cancelled"


def test_a_group_as_cause() -> None:
    """As anyio tells that no address could be connected to."""
    group = ExceptionGroup("x", [ConnectionRefusedError(errno.ECONNREFUSED, "x") for _ in range(2)])
    assert classify(chained(OSError("all connection attempts failed"), group)).reason == "connection_refused"


def test_a_large_group_ends() -> None:
    group = ExceptionGroup("x", [ConnectionResetError() for _ in range(10_000)])
    began_s = time.process_time()
    assert classify(group).reason == "connection_reset"
    assert time.process_time() - began_s < 5


# --- hostile errors ---------------------------------------------------------------------------


class Hostile(Exception):
    """Every attribute anybody asks for raises."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


class HostileProperties(Exception):
    @property
    def status(self) -> int:
        raise RuntimeError("broken")

    @property
    def response(self) -> object:
        raise KeyError("broken")

    @property
    def code(self) -> object:
        raise RecursionError("broken")

    status_code = 503


class HostileText(str):
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("broken")

    def __hash__(self) -> int:
        raise RuntimeError("broken")


class Agreeable:
    """Has every attribute, and each is another such thing."""

    def __getattr__(self, name: str) -> Any:
        return Agreeable()

    def __call__(self, *args: object) -> Any:
        return Agreeable()


def test_an_error_that_raises_is_unreadable_and_never_raises() -> None:
    assert classify(Hostile()).kind == "unknown"
    assert classify(ServiceError(code=HostileText("x"))).kind == "unknown"
    assert (
        classify(ServiceError(response=Agreeable(), body=Agreeable(), headers=Agreeable())).kind == "unknown"
    )


def test_a_property_that_raises_does_not_hide_the_others() -> None:
    assert classify(HostileProperties()).status == 503


values = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(), st.binary(), st.floats(), st.booleans()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=8,
)
attributes = st.sampled_from(
    "status status_code code http_status response headers body type reason sqlstate pgcode errno "
    "grpc_status_code sqlite_errorcode".split()
)


@given(st.dictionaries(attributes, values), st.dictionaries(attributes, values))
def test_never_raises(facts: dict[str, Any], inner: dict[str, Any]) -> None:
    verdict = classify(ServiceError("x", **{"response": Answer(**inner), **facts}))
    assert verdict.hint_s is None or verdict.hint_s >= 0


def test_quick_enough_for_the_loop() -> None:
    """Generous bounds: what is measured here is that nothing is imported, compiled or searched for at length."""
    for error, bound_us in ((ConnectionResetError(), 20.0), (ServiceError(status=503), 60.0)):
        classify(error)
        best_us = min(_timed_us(error) for _ in range(5))
        assert best_us < bound_us


def _timed_us(error: Exception) -> float:
    started = time.perf_counter()
    for _ in range(200):
        classify(error)
    return (time.perf_counter() - started) / 200 * 1e6

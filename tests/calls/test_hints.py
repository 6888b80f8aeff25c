"""Waits that a service asked for, wherever the client put them: never earlier than asked."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from hypothesis import given
from hypothesis import strategies as st

from perdure.calls import classify
from perdure.calls.retry_info import delay_s, trailer_s
from perdure.errors import Transient
from tests.calls.making import HttpError, Script, World

TYPE = "type.googleapis.com/google.rpc.RetryInfo"


def retry_body(delay: object, kind: str = TYPE) -> dict[str, Any]:
    details = [
        {"@type": "type.googleapis.com/google.rpc.ErrorInfo"},
        "odd",
        {"@type": kind, "retryDelay": delay},
    ]
    return {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "details": details}}


def status_error(
    status: int, body: object = None, headers: dict[str, str] | None = None
) -> httpx2.HTTPStatusError:
    request = httpx2.Request("POST", "http://service.test/")
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = httpx2.Response(status, content=content, headers=headers, request=request)
    return httpx2.HTTPStatusError("no", request=request, response=answer)


class Wrapped(Exception):
    """As storage clients raise it: their own words, and the client's error as the cause."""

    def __init__(self, status: int) -> None:
        super().__init__("wrapped")
        self.status = status
        self.code = "InternalError"


def raised(error: Exception, cause: BaseException | None = None) -> Exception:
    try:
        raise error from cause
    except Exception as caught:
        return caught


# --- errors that wrap others ---------------------------------------------------------------------


def test_the_wait_of_a_cause_counts() -> None:
    error = raised(Wrapped(503), status_error(503, headers={"retry-after": "2"}))

    verdict = classify(error)
    assert (verdict.kind, verdict.hint_s, verdict.status, verdict.processed) == ("retryable", 2.0, 503, False)


def test_also_where_the_cause_is_two_steps_away() -> None:
    """An answer that is no JSON: the cause is the failure to read it, which happened while handling the real one."""
    unreadable = ValueError("no JSON")
    unreadable.__context__ = status_error(429, b"<html>", {"retry-after-ms": "1500"})

    assert classify(raised(Wrapped(429), unreadable)).hint_s == 1.5


def test_of_several_waits_the_longest_counts() -> None:
    group = ExceptionGroup("both", [HttpError(503, {"retry-after": "60"}), HttpError(429)])
    assert classify(group).hint_s == 60
    mine = raised(Transient("busy", retry_after_s=3), status_error(503, headers={"retry-after": "9"}))
    assert classify(mine).hint_s == 9
    assert classify(raised(ConnectionResetError(), HttpError(429, {"retry-after": "4"}))).hint_s == 4


def test_a_policy_waits_for_it() -> None:
    world = World()
    wrapped = raised(Wrapped(503), status_error(503, headers={"retry-after": "2"}))

    assert world.policy(backoff=None).call(Script(wrapped, "fine")) == "fine"
    assert world.waits[0] >= 2


def test_an_error_made_up_by_a_client_does_not_hide_the_status() -> None:
    assert classify(Wrapped(404)).kind == "permanent"
    assert classify(Wrapped(500)).kind == "retryable"


# --- services that ask not to be asked again -----------------------------------------------------


@pytest.mark.parametrize("code", ["rate_limit_exceeded", "overloaded_error", None])
@pytest.mark.parametrize("status", [429, 503])
def test_a_service_that_asks_not_to_be_asked_again_is_obeyed(status: int, code: str | None) -> None:
    error = HttpError(status, {"x-should-retry": "false"}, code)
    usual, verdict, wrapped = (
        classify(HttpError(status, code=code)),
        classify(error),
        raised(Wrapped(503), error),
    )

    assert usual.again
    assert verdict == replace(usual, unwanted=True)
    assert verdict.passes
    assert not verdict.again
    assert classify(wrapped) == replace(classify(raised(Wrapped(503), HttpError(status))), unwanted=True)


@pytest.mark.parametrize(
    "error", [HttpError(409, {"x-should-retry": "false"}), HttpError(302, {"x-should-retry": "false"})]
)
def test_what_would_not_pass_anyway_is_over(error: HttpError) -> None:
    verdict = classify(error)
    assert (verdict.kind, verdict.unwanted) == ("permanent", False)


def test_a_reason_that_says_more_is_kept() -> None:
    quota = classify(HttpError(429, {"x-should-retry": "false"}, "insufficient_quota"))
    assert (quota.kind, quota.reason) == ("permanent", "quota")
    assert classify(HttpError(401, {"x-should-retry": "false"})).reason == "status_401"


def test_a_service_that_asks_to_be_asked_again_is_asked() -> None:
    assert classify(HttpError(409, {"x-should-retry": "true"})).kind == "retryable"


# --- google.rpc.RetryInfo --------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 503, 500])
@pytest.mark.parametrize("body", [retry_body("3s"), [retry_body("3s")]])
def test_a_wait_in_the_body_counts(status: int, body: object) -> None:
    assert classify(status_error(status, body)).hint_s == 3.0


def test_a_header_and_a_body_agree_on_the_longer_one() -> None:
    assert classify(status_error(429, retry_body("3.5s"), {"retry-after": "2"})).hint_s == 3.5


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [
        ("0.000000001s", 1e-9), ("34.074824224s", 34.074824224), ("0s", 0.0), ("3", None), ("-3s", None), ("", None),
        ("s", None), ("1e3s", None), ("٣s", None), (3, None), (None, None), (["3s"], None), ("1" * 2_000 + "s", None),
        ("1_0s", None), ("3s ", None),
    ],
)  # fmt: skip
def test_only_what_is_legal_is_read(delay: object, seconds: float | None) -> None:
    assert delay_s(retry_body(delay)) == seconds
    assert delay_s(retry_body(delay, "type.googleapis.com/google.rpc.Help")) is None


def test_clients_that_read_the_body_themselves() -> None:
    """google-genai keeps the body as `details`, google-api-core a list of messages or of dictionaries."""
    for details in (
        retry_body("7s"),
        retry_body("7s")["error"]["details"],
        [ErrorInfo(), RetryInfo(retry_delay=Duration(seconds=7))],
    ):
        error = HttpError(429)
        error.details = details  # type: ignore[attr-defined]
        assert classify(error).hint_s == 7.0


class RpcError(Exception):
    """As grpc raises it."""

    __module__ = "grpc._channel"

    def __init__(self, code: str, trailers: Any) -> None:
        super().__init__(code)
        self._code, self._trailers = code, trailers

    def code(self) -> str:
        return self._code

    def details(self) -> str:
        return "busy"

    def trailing_metadata(self) -> Any:
        return self._trailers


INFO = RetryInfo(retry_delay=Duration(seconds=3, nanos=500_000_000))


def packed(*messages: Any) -> bytes:
    status = Status(code=8, message="busy")
    for message in messages:
        wrapped = AnyMessage()
        wrapped.Pack(message)
        status.details.append(wrapped)
    return status.SerializeToString()


@pytest.mark.parametrize(
    "trailers",
    [
        (("google.rpc.retryinfo-bin", INFO.SerializeToString()),),
        (("grpc-status-details-bin", packed(ErrorInfo(reason="R"), INFO)), ("other", "text")),
        (("grpc-retry-pushback-ms", "3500"),),
    ],
)
def test_a_wait_in_the_trailers_of_grpc_counts(trailers: Any) -> None:
    verdict = classify(RpcError("UNAVAILABLE", trailers))
    assert (verdict.kind, verdict.hint_s) == ("retryable", 3.5)
    wrapped = raised(HttpError(503), RpcError("UNAVAILABLE", trailers))
    assert classify(wrapped).hint_s == 3.5


def test_a_negative_pushback_ends_the_call() -> None:
    verdict = classify(RpcError("UNAVAILABLE", (("grpc-retry-pushback-ms", "-1"),)))
    assert (verdict.again, verdict.kind, verdict.outage) == (False, "retryable", True)


def test_a_negative_wait_is_none() -> None:
    past = RetryInfo(retry_delay=Duration(seconds=-3)).SerializeToString()
    assert trailer_s((("google.rpc.retryinfo-bin", past),)) is None


@given(st.binary(max_size=200), st.sampled_from(["google.rpc.retryinfo-bin", "grpc-status-details-bin"]))
def test_broken_trailers_do_no_harm(data: bytes, key: str) -> None:
    found = trailer_s(((key, data),))
    assert found is None or found >= 0


@given(st.integers(0, 10**9), st.integers(0, 999_999_999))
def test_every_wait_is_read_as_it_was_written(seconds: int, nanos: int) -> None:
    info = RetryInfo(retry_delay=Duration(seconds=seconds, nanos=nanos))
    wanted = pytest.approx(min(seconds + nanos / 1e9, 10 * 365.25 * 86_400))
    assert trailer_s((("google.rpc.retryinfo-bin", info.SerializeToString()),)) == wanted
    assert trailer_s((("grpc-status-details-bin", packed(info)),)) == wanted


@pytest.mark.parametrize("body", [b'{"a":' * 10_000, b"[" * 60_000, b"{" + b"9" * 60_000, b"\xff{", b""])
def test_a_body_that_is_no_json_is_not_believed(body: bytes) -> None:
    assert classify(status_error(503, body)).reason == "status_503"

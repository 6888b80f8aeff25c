"""What an error means: statuses, codes, databases, the system and Python, our own."""

from __future__ import annotations

import asyncio
import errno
import http
import http.client
import json
import socket
import sqlite3
import ssl
import urllib.error
import urllib.request
from enum import Enum
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import apsw
import asyncpg
import botocore.exceptions
import botocore.session
import httpx2
import openai
import psycopg
import pydantic
import pytest
import requests

from perdure.calls.classify import classify
from perdure.calls.verdict import Verdict
from perdure.errors import (
    DependencyDown,
    LeaseLost,
    Permanent,
    RateLimited,
    Rescheduled,
    RetryLater,
    StoreBusy,
    StoreUnavailable,
    Transient,
    UsageError,
)
from tests.calls.errors_at_hand import Answer, ServiceError, closed_port, made, raised

# --- statuses -------------------------------------------------------------------------------


class Code(Enum):
    BUSY = 503


class Grpc(Enum):
    ABORTED = (10, "aborted")
    UNAVAILABLE = (14, "unavailable")
    NOT_FOUND = (5, "not found")


@pytest.mark.parametrize("status", [408, 425, 429, *range(500, 600)])
def test_statuses_that_pass(status: int) -> None:
    verdict = classify(ServiceError(status=status))
    assert verdict.again
    assert verdict.status == status
    assert verdict.outage == (status >= 500)
    assert verdict.processed == (status not in {425, 429})


@pytest.mark.parametrize("status", [s for s in range(400, 500) if s not in {408, 425, 429}])
def test_every_other_4xx_is_permanent(status: int) -> None:
    verdict = classify(ServiceError(status=status))
    assert verdict == Verdict("permanent", f"status_{status}", status=status)


@pytest.mark.parametrize("status", [100, 200, 204, 301, 302, 304, 399])
def test_other_statuses_are_unknown(status: int) -> None:
    assert classify(ServiceError(status=status)).kind == "unknown"


@pytest.mark.parametrize("value", [503, "503", http.HTTPStatus.SERVICE_UNAVAILABLE, Code.BUSY])
@pytest.mark.parametrize("name", ["status", "status_code", "code", "http_status"])
def test_a_status_as_number_text_or_enum_on_the_error_or_its_response(name: str, value: object) -> None:
    expected = Verdict("retryable", "status_503", outage=True, status=503)
    assert classify(ServiceError("x", **{name: value})) == expected
    assert classify(ServiceError(response=Answer(**{name: value}))) == expected


@pytest.mark.parametrize(
    "value", [True, 99, 600, 10**30, -503, "50", "5030", "５０３", "²²²", b"503", 503.0, None, []]
)
def test_what_is_no_status(value: object) -> None:
    assert classify(ServiceError(status=value)).status is None


def test_the_name_of_a_status_is_no_code() -> None:
    assert classify(ServiceError(code=http.HTTPStatus.NOT_FOUND)) == Verdict(
        "permanent", "status_404", status=404
    )


def test_a_response_that_is_false_still_answers() -> None:
    response = requests.Response()
    response.status_code = 503
    assert not response
    assert classify(requests.HTTPError("x", response=response)).status == 503


def test_a_response_that_was_not_read_is_not_read_now() -> None:
    class Unread(requests.Response):
        @property
        def content(self) -> bytes:
            raise AssertionError("this would go to the network")

    response = Unread()
    response.status_code = 429
    assert classify(requests.HTTPError("x", response=response)).reason == "status_429"


# --- codes ----------------------------------------------------------------------------------


def client_error(code: str, status: int, **headers: str) -> BaseException:
    metadata = {"HTTPStatusCode": status, "HTTPHeaders": headers}
    response: Any = {"Error": {"Code": code, "Message": "text"}, "ResponseMetadata": metadata}
    return botocore.exceptions.ClientError(response, "PutObject")


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("ThrottlingException", 400, "rate_limited"),
        ("SlowDown", 503, "rate_limited"),
        ("ProvisionedThroughputExceededException", 400, "rate_limited"),
        ("RequestTimeout", 400, "retryable"),
        ("InternalError", 500, "retryable"),
        ("NoSuchKey", 404, "permanent"),
        ("SomethingNew", 403, "permanent"),
        ("SomethingNew", 502, "retryable"),
    ],
)
def test_codes_of_aws(code: str, status: int, kind: str) -> None:
    verdict = classify(client_error(code, status))
    assert (verdict.kind, verdict.status) == (kind, status)
    assert verdict.outage == (kind == "retryable")


def test_headers_of_aws() -> None:
    assert classify(client_error("SlowDown", 503, **{"retry-after": "3"})).hint_s == 3


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (made("google.api_core.exceptions.Aborted", code=409, grpc_status_code=Grpc.ABORTED),
         "retryable", "aborted"),
        (made("google.api_core.exceptions.ServiceUnavailable", code=http.HTTPStatus.SERVICE_UNAVAILABLE),
         "retryable", "status_503"),
        (made("google.api_core.exceptions.Forbidden", code=403, reason="rateLimitExceeded"),
         "rate_limited", "rate_limit"),
        (made("google.genai.errors.ClientError", code=429, status="RESOURCE_EXHAUSTED"), "rate_limited", "rate_limit"),
        (made("grpc.RpcError", code=lambda self=None: Grpc.UNAVAILABLE),
         "retryable", "service_error"),
        (made("grpc.RpcError", code=lambda self=None: Grpc.NOT_FOUND), "permanent", "refused"),
        (made("anthropic.OverloadedError", status_code=529, type="overloaded_error"), "retryable", "service_error"),
        (made("anthropic.APIStatusError", status_code=200,
              body={"type": "error", "error": {"type": "overloaded_error"}}), "retryable", "service_error"),
        (made("anthropic.RateLimitError", status_code=429, type="rate_limit_error"), "rate_limited", "rate_limit"),
        (made("openai.APIError", body={"code": "server_error"}), "retryable", "service_error"),
        (made("some.Error", code="billing_hard_limit_reached", status=429), "permanent", "quota"),
        (made("some.Error", code="ECONNRESET"), "retryable", "connection_reset"),
        (made("some.Error", code="EAI_AGAIN"), "retryable", "dns"),
    ],
)  # fmt: skip
def test_codes_of_other_services(error: BaseException, kind: str, reason: str) -> None:
    verdict = classify(error)
    assert (verdict.kind, verdict.reason) == (kind, reason)


# --- databases ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind", "processed", "outage"),
    [
        (asyncpg.SerializationError("x"), "retryable", False, False),
        (asyncpg.DeadlockDetectedError("x"), "retryable", False, False),
        (asyncpg.TooManyConnectionsError("x"), "retryable", False, True),
        (asyncpg.ConnectionDoesNotExistError("x"), "retryable", True, True),
        (asyncpg.CannotConnectNowError("x"), "retryable", False, True),
        (asyncpg.AdminShutdownError("x"), "retryable", True, True),
        (asyncpg.InterfaceError("connection is closed"), "retryable", True, True),
        (asyncpg.InterfaceError("cannot perform operation"), "unknown", True, False),
        (asyncpg.UniqueViolationError("x"), "permanent", True, False),
        (asyncpg.NumericValueOutOfRangeError("x"), "permanent", True, False),
        (asyncpg.UndefinedTableError("x"), "unknown", True, False),
        (asyncpg.QueryCanceledError("x"), "unknown", True, False),
        (psycopg.errors.SerializationFailure("x"), "retryable", False, False),
        (psycopg.errors.UniqueViolation("x"), "permanent", True, False),
        (psycopg.errors.LockNotAvailable("x"), "unknown", True, False),
        (psycopg.OperationalError("x"), "retryable", True, True),
        (ServiceError(pgcode="40001"), "retryable", False, False),
        (ServiceError(pgcode="40003"), "retryable", True, False),
        (apsw.BusyError("x"), "retryable", False, False),
        (apsw.LockedError("x"), "retryable", False, False),
        (apsw.ConstraintError("x"), "permanent", True, False),
        (sqlite3.IntegrityError("x"), "permanent", True, False),
        (sqlite3.OperationalError("database is locked"), "unknown", True, False),
    ],
)
def test_errors_of_databases(error: Exception, kind: str, processed: bool, outage: bool) -> None:
    verdict = classify(error)
    assert (verdict.kind, verdict.processed, verdict.outage) == (kind, processed, outage)


def test_a_locked_sqlite_database(tmp_path: Path) -> None:
    path = tmp_path / "some.db"
    with sqlite3.connect(path) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        waiting = sqlite3.connect(path, timeout=0)
        verdict = classify(raised(lambda: waiting.execute("CREATE TABLE t (x)")))
        waiting.close()
    holder.close()
    assert (verdict.kind, verdict.reason) == ("retryable", "busy")


def test_psycopg_without_a_server() -> None:
    with closed_port() as url:
        port = url.rpartition(":")[2]
        verdict = classify(
            raised(lambda: psycopg.connect(f"host=127.0.0.1 port={port} dbname=x connect_timeout=2"))
        )
    assert (verdict.kind, verdict.outage) == ("retryable", True)


def test_an_sqlstate_is_kept_as_code() -> None:
    assert classify(asyncpg.UniqueViolationError("x")).code == "23505"


# --- the system and Python ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "reason", "processed"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "x"), "connection_refused", False),
        (ConnectionRefusedError(), "connection_refused", False),
        (OSError(errno.ECONNRESET, "x"), "connection_reset", True),
        (BrokenPipeError(), "broken_pipe", True),
        (OSError(errno.EPIPE, "x"), "broken_pipe", True),
        (OSError(errno.ETIMEDOUT, "x"), "timeout", True),
        (OSError(errno.EHOSTUNREACH, "x"), "unreachable", True),
        (TimeoutError(), "timeout", True),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure"), "dns", False),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "dns", False),
        (urllib.error.URLError(TimeoutError()), "timeout", True),
        (urllib.error.URLError(socket.gaierror(socket.EAI_AGAIN, "x")), "dns", False),
        (http.client.RemoteDisconnected("x"), "disconnected", True),
        (http.client.IncompleteRead(b"x"), "response_cut", True),
        (asyncio.IncompleteReadError(b"x", 5), "response_cut", True),
        (ssl.SSLEOFError(8, "EOF occurred"), "tls_cut", True),
        (ssl.SSLError(1, "[SSL] record layer failure"), "tls", True),
        (made("aiohttp.client_exceptions.ServerDisconnectedError"), "disconnected", True),
        (made("aiohttp.ClientConnectorDNSError"), "dns", False),
        (made("httpcore.PoolTimeout"), "pool_timeout", False),
        (made("mine.Wrapped", ConnectionRefusedError), "connection_refused", False),
    ],
)
def test_errors_of_the_system(error: BaseException, reason: str, processed: bool) -> None:
    verdict = classify(error)
    assert (verdict.reason, verdict.processed) == (reason, processed)
    assert verdict.again


def test_an_errno_is_kept_as_code() -> None:
    assert classify(OSError(errno.ECONNRESET, "x")).code == "ECONNRESET"
    assert classify(FileNotFoundError(errno.ENOENT, "x")).kind == "unknown"


def test_a_wrong_certificate_is_permanent_however_it_is_wrapped() -> None:
    wrong = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")
    assert classify(wrong).reason == "certificate"
    alert = ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED]")
    alert.reason = "TLSV13_ALERT_CERTIFICATE_REQUIRED"
    assert classify(alert).kind == "permanent"
    connect = httpx2.ConnectError("certificate verify failed")
    connect.__cause__ = wrong
    outer = openai.APIConnectionError(request=httpx2.Request("GET", "http://127.0.0.1"))
    outer.__cause__ = connect
    assert classify(outer) == Verdict("permanent", "certificate", processed=False)


@pytest.mark.parametrize(
    "error",
    [
        TypeError("429 rate limit"), KeyError("connection reset by peer"), AttributeError("x"), NameError("x"),
        ImportError("x"), AssertionError("x"), ZeroDivisionError(), NotImplementedError(), RecursionError(),
        IndexError("temporarily unavailable"),
    ],
)  # fmt: skip
def test_mistakes_in_the_program_are_permanent_whatever_they_say(error: Exception) -> None:
    assert classify(error) == Verdict("permanent", "programming_error")


class Model(pydantic.BaseModel):
    x: int


def test_what_does_not_validate_is_permanent() -> None:
    for call in (lambda: Model(x="no"), lambda: int("no")):  # type: ignore[arg-type]
        assert classify(raised(call)) == Verdict("permanent", "validation")


def test_a_document_that_cannot_be_parsed_has_no_status() -> None:
    broken = ElementTree.ParseError("undefined entity")
    broken.code = 503  # the parser's own number, chosen by the document
    assert classify(broken) == Verdict("permanent", "validation")


@pytest.mark.parametrize(
    "error", [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(1), GeneratorExit()]
)
def test_who_is_told_to_stop_does_not_go_on(error: BaseException) -> None:
    assert classify(error) == Verdict("permanent", "cancelled")


@pytest.mark.parametrize(
    "error",
    [
        Exception("connection reset by peer"),
        RuntimeError("429 Too Many Requests: rate limit"),
        RuntimeError("temporarily unavailable"),
        made("mine.Error"),
        raised(lambda: json.loads("<html>503</html>")),
    ],
)
def test_messages_of_unknown_errors_are_not_read(error: Exception) -> None:
    assert classify(error).kind == "unknown"


def test_only_the_beginning_of_a_library_s_own_message_counts() -> None:
    error = type("GatewayError", (Exception,), {"__module__": "grpc.gateway"})
    assert classify(error("Connection reset by peer")).reason == "connection_reset"
    assert classify(error("the document says: connection reset by peer")).kind == "unknown"


# --- our own --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (Permanent("pdf_broken"), Verdict("permanent", "permanent", code="pdf_broken")),
        (
            RateLimited(delay_s=7),
            Verdict("rate_limited", "retry_later", 7, processed=False, code="rate_limited"),
        ),
        (
            RetryLater(delay_s=9),
            Verdict("rate_limited", "retry_later", 9, processed=False, code="retry_later"),
        ),
        (
            RetryLater(delay_s=float("nan")),
            Verdict("rate_limited", "retry_later", processed=False, code="retry_later"),
        ),
        (Transient(retry_after_s=3), Verdict("retryable", "transient", 3, code="transient")),
        (Transient(), Verdict("retryable", "transient", code="transient")),
        (
            DependencyDown("ocr"),
            Verdict("permanent", "dependency_down", processed=False, code="dependency_down"),
        ),
        (Rescheduled("x"), Verdict("permanent", "rescheduled", code="rescheduled")),
        (StoreBusy(), Verdict("retryable", "store", code="store_busy")),
        (StoreUnavailable(), Verdict("retryable", "store", outage=True, code="store_unavailable")),
        (LeaseLost(), Verdict("permanent", "lease_lost", code="lease_lost")),
        (UsageError(), Verdict("permanent", "usage", code="usage")),
    ],
)
def test_our_own_errors(error: Exception, verdict: Verdict) -> None:
    assert classify(error) == verdict

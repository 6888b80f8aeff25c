"""Who calls: the key's organisation and scopes, and how often it may ask.

    read      documents, search, events, dead letters of the organisation
    write     adding, requeueing, cancelling and deleting its documents, webhooks, answers to remote stages
    operate   what concerns everybody: queues, dependencies, workers, purging many, metrics;
              for those who run the server

Without a key only an *open* server answers: on loopback, for trials, and to no web page but its own.
"""

from __future__ import annotations

import ipaddress
import time
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request
from fastapi.security import HTTPBearer

from perdure.api.refused import Refused
from perdure.api.turns import Turns
from perdure.core.frozen import frozen
from perdure.core.model import ORG_DEFAULT
from perdure.store.keys import SCOPES

if TYPE_CHECKING:
    from perdure.service import AsyncPerdure

HOW = "send a key as `Authorization: Bearer pk_…`; `perdure key add ORGANISATION` makes one"
ADMITTED = "perdure.caller"
NOTED_S = 60.0  # between notes that a key is in use
bearer = HTTPBearer(auto_error=False, description="An API key: `perdure key add ORGANISATION` makes one.")


@frozen
class Caller:
    """Whose request it is."""

    org: str
    who: str
    scopes: tuple[str, ...]


class Rates:
    """How often each organisation may ask this server: `per_s`, and twice that at once."""

    def __init__(self, per_s: float) -> None:
        self.per_s = per_s
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, org: str, now_s: float) -> float:
        """Seconds to wait before the next request; 0 if this one may go."""
        most = max(1.0, 2 * self.per_s)
        left, at_s = self._left.get(org, (most, now_s))
        left = min(most, left + (now_s - at_s) * self.per_s)
        if left < 1:
            self._left[org] = (left, now_s)
            return (1 - left) / self.per_s
        self._left[org] = (left - 1, now_s)
        return 0.0


class Gate:
    """Lets callers in; one per application."""

    def __init__(self, app: AsyncPerdure, open_: bool, per_s: float) -> None:
        self._app = app
        self._open = open_
        self._rates = Rates(per_s)
        self._turns = Turns()
        self._noted: dict[str, float] = {}

    async def enter(self, request: Request, scope: str) -> Caller:
        """The caller, if it may do what needs the scope; Refused."""
        caller = await self.admit(request)
        if scope not in caller.scopes:
            has = ", ".join(caller.scopes)
            raise Refused(403, "scope_missing", f"this needs a key with the scope {scope}; yours has {has}")
        await self._turns.take(caller.org, request.scope)
        return caller

    async def admit(self, request: Request) -> Caller:
        """The caller, if it does not ask too often; a request counts once. Raises: Refused."""
        if (admitted := request.scope.get(ADMITTED)) is not None:
            caller: Caller = admitted
            return caller
        caller = await self.caller(request)
        wait_s = self._rates.take(caller.org, time.monotonic())
        if wait_s:
            await self._turns.delay_refusal(caller.org)
            raise Refused(
                429, "rate_limited", f"this organisation asks more than {self._rates.per_s:g} times a second; wait",
                retry_after_s=wait_s,
            )  # fmt: skip
        request.scope[ADMITTED] = caller
        return caller

    async def caller(self, request: Request) -> Caller:
        """Whose key it is; Refused."""
        presented = _presented(request)
        if presented is None:
            if not self._open:
                raise Refused(401, "key_missing", HOW, WWW_Authenticate="Bearer")
            _check_own_page(request)
            return Caller(ORG_DEFAULT, "anonymous", SCOPES)
        found = await self._app.key(presented)
        if found is None:
            raise Refused(
                401, "key_invalid", f"this key is unknown or was revoked; {HOW}", WWW_Authenticate="Bearer"
            )
        now_s = time.monotonic()
        if now_s - self._noted.get(found.id, -NOTED_S) >= NOTED_S:
            self._noted[found.id] = now_s
            await self._app.store.key_used(found.id)
        return Caller(found.org, f"key {found.name or found.id}", found.scopes)


def _presented(request: Request) -> str | None:
    if (key := request.headers.get("x-api-key")) is not None:
        return key
    if (said := request.headers.get("authorization")) is None:
        return None
    scheme, _, key = said.partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _check_own_page(request: Request) -> None:
    """A page of somebody else's, open in a browser on this machine, must not act as the one who sits there."""
    host, origin = request.headers.get("host", "").lower(), request.headers.get("origin")
    if not is_loopback(_host(host)) or (
        origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}")
    ):
        raise Refused(
            403, "origin_forbidden", "an open server answers only on its own address, and to its own pages"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _host(netloc: str) -> str:
    try:
        return urlsplit(f"//{netloc}").hostname or ""
    except ValueError:
        return ""


class _Scope:
    def __init__(self, scope: str) -> None:
        self.scope = scope

    async def __call__(self, request: Request, _: Annotated[object, Depends(bearer)]) -> Caller:
        gate: Gate = request.app.state.gate
        return await gate.enter(request, self.scope)


Reader = Annotated[Caller, Depends(_Scope("read"))]
Writer = Annotated[Caller, Depends(_Scope("write"))]
Operator = Annotated[Caller, Depends(_Scope("operate"))]

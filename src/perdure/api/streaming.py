"""What happens to documents, as server-sent events. Whoever was cut off goes on with `Last-Event-ID`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from perdure.api.caller import Reader
from perdure.api.refused import Refused
from perdure.api.shared import PROBLEMS, Service
from perdure.api.slots import Slots
from perdure.api.turns import pass_on
from perdure.errors import StoreError
from perdure.store.feed import NAMES, place

router = APIRouter(prefix="/v3", tags=["events"], responses=PROBLEMS)
LOOK_S = 0.5
BEAT_S = 15.0  # of silence, after which proxies want to hear something
KEY_S = 15.0  # between looks whether the key is still good
LOOKS_MAX = (
    200  # streams that look as often as LOOK_S says; more of them look less often, or the store would pay
)
EVENT = {
    "description": "Events, each with id, event and data.",
    "content": {"text/event-stream": {"schema": {"type": "string"}}},
}


@router.get("/events", response_class=StreamingResponse, responses={200: EVENT})
async def events(
    request: Request, service: Service, caller: Reader,
    last_event_id: Annotated[str | None, Header(alias="Last-Event-ID", max_length=50)] = None,
    after: Annotated[str | None, Query(max_length=50, description="As Last-Event-ID; `0-0`: all that is kept.")] = None,
    name: Annotated[list[str] | None, Query(description=f"Only these: {', '.join(NAMES)}.")] = None,
) -> StreamingResponse:  # fmt: skip
    """What happens to documents of the organisation from now on, or from where you were."""
    if unknown := sorted(set(name or ()) - set(NAMES)):
        raise Refused(422, "event_unknown", f"there is no event {unknown[0]!r}; there are {', '.join(NAMES)}")
    start = last_event_id or after or await service.store.feed_end()
    place(start)
    request.app.state.looks.check(caller.org)
    stream = _stream(request, caller.org, start, frozenset(name or NAMES))
    return Counted(stream, request.app.state.streams, caller.org)


def stream_slots(most: int, most_of_one: int) -> Slots:
    """Slots of streams."""

    def refusal(own: bool) -> Refused:
        whose = "of this organisation " if own else ""
        said = f"too many streams {whose}are open here; close one or try again later"
        return Refused(503, "streams_too_many", said, retry_after_s=10)

    return Slots(most, most_of_one, refusal)


class Counted(StreamingResponse):
    """A stream that holds its place from before the first byte until the client hangs up."""

    media_type = "text/event-stream"

    def __init__(self, content: AsyncIterator[bytes], streams: Slots, org: str) -> None:
        super().__init__(content, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._streams, self._org = streams, org

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._streams.place(self._org):
            pass_on(scope)
            await super().__call__(scope, receive, send)


async def _stream(request: Request, org: str, start: str, names: frozenset[str]) -> AsyncIterator[bytes]:
    state, silent_s, known_s = request.app.state, 0.0, time.monotonic()
    yield b": from here on\n\n"
    while not state.stopping.is_set():
        if time.monotonic() - known_s >= KEY_S:
            known_s = time.monotonic()
            if not await _still_good(request):
                return
        try:
            found = await state.looks.feed(org, start)
        except (StoreError, Refused):
            found = []  # it comes back, or the client goes
        if found:
            start = found[-1].place
            wanted = b"".join(one.said for one in found if one.name in names)
            if wanted:
                silent_s = 0.0
                yield wanted
            continue
        look_s = LOOK_S * max(1.0, state.streams.open / LOOKS_MAX)
        silent_s += look_s
        if silent_s >= BEAT_S:
            silent_s = 0.0
            yield b": still here\n\n"
        await _pause(state.stopping, look_s)


async def _still_good(request: Request) -> bool:
    """Whether the key that the stream was opened with has not been revoked since."""
    try:
        await request.app.state.gate.caller(request)
    except Refused:
        return False
    except StoreError:
        return True  # nobody can say; nothing is read from it either
    return True


async def _pause(stopping: asyncio.Event, look_s: float) -> None:
    try:
        async with asyncio.timeout(look_s):
            await stopping.wait()
    except TimeoutError:
        return

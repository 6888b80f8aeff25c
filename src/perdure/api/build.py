"""The application: its routes, its errors, its life."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI
from fastapi_offline import FastAPIOffline

from perdure import __version__
from perdure.api import (
    adding,
    auditing,
    dead,
    documents,
    finding,
    health,
    images,
    operating,
    remote,
    streaming,
    upkeep,
    webhooks,
)
from perdure.api.caller import Gate
from perdure.api.connections import Guard
from perdure.api.downloads import download_slots, export_slots
from perdure.api.looks import Looks
from perdure.api.parameters import known_only
from perdure.api.problems import handle_errors
from perdure.api.readers import Readers
from perdure.api.receiving import Limits, Uploads
from perdure.api.turns import Ending
from perdure.api.views import Bulk, Finished, NewDocument
from perdure.engine import rooms
from perdure.service import AsyncPerdure

SUMMARY = "Processes documents and never loses one."
ABOUT = """Hand in a URL, a text or a file; what is answered with an id is durable. Every error is a problem+json with a
stable `code`. Lists are read on with `after`. A key belongs to an organisation, and what is another's is not there."""

_described: dict[str, object] = {}  # the OpenAPI document, which is the same for every application made here


def build(service: AsyncPerdure, *, open_: bool = False, started: bool = False) -> FastAPI:
    """The HTTP API over the app, which is started (unless it is `started`) and closed with it. `open_`: no key is
    needed (on loopback)."""

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        app.state.stopping = asyncio.Event()
        app.state.auditing, app.state.readers = asyncio.Lock(), Readers()
        if limits.spool is not None:
            await asyncio.to_thread(rooms.clear_out, limits.spool)
        if not started:
            await service.start()
        service.measure()
        await asyncio.to_thread(app.openapi)  # it takes a second, for which requests would wait
        try:
            yield
        finally:
            app.state.stopping.set()
            await app.state.readers.close()
            await service.close()

    settings = service.settings
    limits = Limits(
        settings.document_bytes_max, settings.api_json_bytes_max, settings.upload_pause_s, settings.upload_total_s,
        getattr(service.blobs, "temporary", None), settings.upload_bytes_per_s, settings.api_json_values_max,
        settings.download_pause_s,
    )  # fmt: skip
    app = FastAPIOffline(  # its page needs no other host
        redoc_url=None, static_url="/docs/static", title="Perdure", version=__version__, summary=SUMMARY,
        description=ABOUT, lifespan=life,
        separate_input_output_schemas=False,
    )  # fmt: skip
    app.state.service, app.state.limits = service, limits
    app.state.uploads = Uploads()
    app.state.streams = streaming.stream_slots(settings.api_streams_max, settings.api_streams_per_org)
    app.state.downloads = download_slots(settings.api_downloads_max, settings.api_downloads_per_org)
    app.state.exports = export_slots(settings.api_downloads_max)
    app.state.looks = Looks(service)
    app.state.guard = Guard.of(settings)
    app.state.gate = Gate(service, open_, settings.api_rate_per_s)
    for part in (adding, documents, remote, finding, dead, operating, auditing, webhooks, streaming, health):
        app.include_router(part.router, dependencies=[Depends(known_only)])
    for more in (images.router, upkeep.router, upkeep.imports):
        app.include_router(more, dependencies=[Depends(known_only)])
    handle_errors(app)
    app.add_middleware(Ending)
    _add_schemas(app)
    return app


def _add_schemas(app: FastAPI) -> None:
    """Bodies that are read here and not by the framework have schemas as well."""
    make, routes = app.openapi, len(app.routes)

    def openapi() -> dict[str, object]:
        if _described and len(app.routes) == routes:
            return _described
        made = make()
        schemas = made.setdefault("components", {}).setdefault("schemas", {})
        for model in (NewDocument, Bulk, Finished):
            schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
            schema.pop("$defs", None)
            schemas.setdefault(model.__name__, schema)
        if len(app.routes) == routes:
            _described.update(made)
        return made

    app.openapi = openapi  # type: ignore[method-assign]

"""`perdure serve` as a process of its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2

from perdure import Perdure
from perdure.service import AsyncPerdure
from tests.api.server import notes
from tests.ports import free_ports

app = Perdure("sqlite:///not-opened.db", pipelines=[notes])
ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0


def new_key(store: str, org: str) -> str:
    """A key of the organisation."""

    async def make() -> str:
        service = AsyncPerdure(store)
        await service.start()
        try:
            return (await service.add_key(org, "test", ("read", "write")))[1]
        finally:
            await service.close()

    return asyncio.run(make())


@contextmanager
def served(store: str, *options: str, target: str = f"{__name__}:app", **environment: str) -> Iterator[str]:
    """The address of a server that answers; ended with the block."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [
        sys.executable,
        "-m",
        "perdure",
        "serve",
        target,
        "--store",
        store,
        "--port",
        str(port),
    ]
    given = {
        **os.environ,
        "PYTHONPATH": path,
        "PERDURE_API_RATE_PER_S": "100000",
        "PERDURE_LOG_LEVEL": "WARNING",
        **environment,
    }
    process = subprocess.Popen([*command, *options], cwd=ROOT, env=given)
    try:
        until_s = time.monotonic() + PATIENCE_S
        while not _ready(url):
            assert process.poll() is None, "the server ended by itself"
            assert time.monotonic() < until_s, "the server does not answer"
            time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def _ready(url: str) -> bool:
    with suppress(httpx2.TransportError):
        return httpx2.get(f"{url}/readyz", timeout=90).status_code == 200
    return False

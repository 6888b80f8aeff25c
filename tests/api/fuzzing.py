"""schemathesis over a running server: good and bad requests from its OpenAPI document, answers held against it.

Beside the word of schemathesis stands the server's own count of what it answered.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from perdure import Document, Permanent, Pipeline
from tests.api.server import Server

#: What a schema cannot say, such as which pipelines there are, is refused although the request fits the schema.
UNCHECKED = "positive_data_acceptance"
ENDLESS = "/v3/events"


def _pipeline(name: str) -> Pipeline:
    made = Pipeline(name, attempts=1)

    @made.stage
    def read(doc: Document) -> str:
        if "bad" in str(doc.text):
            raise Permanent("not_good", "it is bad")
        return str(doc.text)

    return made


#: Under the names that `auto` finds, so that most of what is made up is taken in.
PIPELINES = [_pipeline(name) for name in ("document", "image", "mail")]


class Answers:
    """Counts what an application answers, by status."""

    def __init__(self, app: Any, count: Counter[int]) -> None:
        self.app, self.count = app, count

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def counted(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.count[message["status"]] += 1
            await send(message)

        await self.app(scope, receive, counted)


def fuzz(store: str, directory: Path, examples: int, *more: str) -> Counter[int]:
    """How often each status was answered; AssertionError with what schemathesis found."""
    count: Counter[int] = Counter()
    server = Server(store, pipelines=PIPELINES, api_rate_per_s=1e6)
    server.app.add_middleware(Answers, count=count)
    with server:
        config = directory / "schemathesis.toml"
        config.write_text(_known(server))
        key = server.key("acme", "read", "write", "operate")
        command = [
            str(Path(sys.executable).with_name("schemathesis")), "--no-color", "--config-file", str(config), "run",
            f"{server.url}/openapi.json", "--header", f"Authorization: Bearer {key}", "--exclude-path", ENDLESS,
            "--exclude-checks", UNCHECKED, "--suppress-health-check", "all", "--continue-on-failure",
            "--request-timeout", "30", "--max-examples", str(examples), "--warnings", "off", *more,
        ]  # fmt: skip
        count.clear()
        ran = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    print(ran.stdout[-20_000:], ran.stderr[-2000:])
    assert ran.returncode == 0, f"schemathesis found something: {ran.stdout[-20_000:]}{ran.stderr[-2000:]}"
    return count


def _known(server: Server) -> str:
    """Half of all ids and names are some that are there: documents in every state, queues, webhooks."""
    client = server.client("acme", "read", "write", "operate")
    texts = [{"text": f"{word} {n}", "dedupe": False} for word in ("good", "bad") for n in range(30)]
    client.post("/v3/documents/bulk", json={"documents": texts})
    server.run(server.service.run_until_idle())
    client.post("/v3/documents/bulk", json={"documents": texts})
    ids = [one["id"] for one in client.get("/v3/documents", params={"limit": 1000}).json()["documents"]]
    made = client.post("/v3/webhooks", json={"url": "https://example.org/hook"}).json()
    words = {"id": [*ids, made["id"]], "name": ["default", "document", "nothing"], "stage": ["read"]}
    lines = [f"[dictionaries.{name}]\nvalues = {json.dumps(values)}" for name, values in words.items()]
    bound = [f'"path.{name}" = {{ dictionary = "{name}", probability = 0.5 }}' for name in words]
    hooks = f"hooks = {json.dumps(str(Path(__file__).with_name('fuzz_hooks.py')))}"
    return "\n".join([hooks, *lines, "[parameters]", *bound, ""])

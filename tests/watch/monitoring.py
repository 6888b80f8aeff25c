"""Prometheus, its tool and its Pushgateway, from Debian's packages; on loopback ports that nobody else has.

On Debian, as root, a missing package is installed; elsewhere a missing program fails the tests that need it.
"""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.debian import ROOT, install

PATIENCE_S = 90
PACKAGES = {
    "promtool": "prometheus",
    "prometheus": "prometheus",
    "prometheus-pushgateway": "prometheus-pushgateway",
}


def program(name: str) -> str:
    """Where it is."""
    found = shutil.which(name)
    if found is None:
        install(PACKAGES[name])
        found = shutil.which(name)
    assert found is not None, f"{name} is missing: install the Debian package {PACKAGES[name]}"
    return found


def fetched(url: str) -> str:
    """What is at the URL."""
    with urllib.request.urlopen(url, timeout=90) as answer:
        text: str = answer.read().decode()
        return text


def until_ready(url: str, process: subprocess.Popen[bytes], patience_s: float = PATIENCE_S) -> None:
    """Wait until the URL answers."""
    give_up_s = time.monotonic() + patience_s
    while True:
        try:
            fetched(url)
            return
        except (OSError, urllib.error.URLError, http.client.HTTPException):
            # a port that nobody has yet may be connected to itself
            assert process.poll() is None, f"the server of {url} ended with status {process.poll()}"
            assert time.monotonic() < give_up_s, f"{url} did not answer within {patience_s} s"
            time.sleep(0.1)


@contextmanager
def running(command: list[str], ready: str, log: Path) -> Iterator[None]:
    """A server for as long as the block lasts."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        until_ready(ready, process)
        yield
    finally:
        process.terminate()
        process.wait(90)


@contextmanager
def prometheus(directory: Path, port: int, targets: list[str]) -> Iterator[str]:
    """A Prometheus that scrapes these every second, with our rules; gives its address."""
    rules = ROOT / "src/perdure/watch/rules/perdure.rules.yml"
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [
            {"job_name": "perdure", "honor_labels": True, "static_configs": [{"targets": targets}]}
        ],
    }
    (directory / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML, too
    command = [
        program("prometheus"), f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/tsdb",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
    ]  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    with running(command, f"{address}/-/ready", directory / "prometheus.log"):
        yield address


@contextmanager
def pushgateway(directory: Path, port: int) -> Iterator[str]:
    """A Pushgateway; gives its address."""
    command = [program("prometheus-pushgateway"), f"--web.listen-address=127.0.0.1:{port}"]
    address = f"http://127.0.0.1:{port}"
    with running(command, f"{address}/-/ready", directory / "pushgateway.log"):
        yield address


def asked(address: str, expression: str) -> list[dict[str, Any]]:
    """What a Prometheus answers to an expression, now."""
    query = urllib.parse.urlencode({"query": expression})
    answer = json.loads(fetched(f"{address}/api/v1/query?{query}"))
    assert answer["status"] == "success", answer
    found: list[dict[str, Any]] = answer["data"]["result"]
    return found

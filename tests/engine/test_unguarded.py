"""A module that starts its app when it is imported must not start it again in every process that needs its stages."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

SCRIPT = """
from perdure import Document, Perdure, Pipeline

books = Pipeline("books")

@books.stage(isolate=True)
def read(doc: Document) -> int:
    return len(doc.text)

app = Perdure("sqlite:///books.db", pipelines=[books])
with app:
    app.add(text="started at import", pipeline=books)
"""


@pytest.mark.full
def test_a_worker_of_an_unguarded_module_starts_no_chain_of_processes(tmp_path: Path) -> None:
    (tmp_path / "books.py").write_text(SCRIPT)
    subprocess.run([sys.executable, "books.py"], cwd=tmp_path, check=True, timeout=60)
    log = tmp_path / "log"
    with log.open("w") as out:
        worker = subprocess.Popen(
            [sys.executable, "-m", "perdure", "worker", "books:app"], cwd=tmp_path, stderr=out
        )
    most, give_up_s = 0, time.monotonic() + 90
    try:
        while "attempt done" not in log.read_text():
            most = max(most, len(psutil.Process(worker.pid).children(recursive=True)))
            assert time.monotonic() < give_up_s, log.read_text()
            time.sleep(0.02)
        for _ in range(20):  # a chain would go on
            most = max(most, len(psutil.Process(worker.pid).children(recursive=True)))
            time.sleep(0.05)
    finally:
        worker.terminate()
        worker.wait(90)
    assert 0 < most <= 3, "a child, its nursery, a cell"
    assert worker.returncode == 0

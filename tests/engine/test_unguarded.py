"""A module that starts its app when it is imported must not start it again in every process that needs its stages."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil

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


def test_a_worker_of_an_unguarded_module_starts_no_chain_of_processes(tmp_path: Path) -> None:
    (tmp_path / "books.py").write_text(SCRIPT)
    subprocess.run([sys.executable, "books.py"], cwd=tmp_path, check=True, timeout=60)
    worker = subprocess.Popen(
        [sys.executable, "-m", "perdure", "worker", "books:app"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    most = 0
    try:
        until = time.monotonic() + 5
        while time.monotonic() < until:
            most = max(most, len(psutil.Process(worker.pid).children(recursive=True)))
            time.sleep(0.1)
    finally:
        worker.terminate()
        _, said = worker.communicate(timeout=30)
    assert most <= 3, "a child, its nursery, a cell"
    assert worker.returncode == 0
    assert "attempt done" in said

"""`make audit-deps` never takes silence for a good answer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "audit-deps"
SKIPPED = '{"name": "a", "skip_reason": "not found"}'
SOUND = '{"name": "b", "version": "1", "vulns": []}'
WEAK = '{"name": "c", "version": "1", "vulns": [{"id": "X-1"}]}'


@pytest.mark.parametrize(
    ("answer", "status"),
    [("", 2), (SKIPPED, 2), (f"{SOUND}, {SKIPPED}", 2), (SOUND, 0), (WEAK, 1), (f"{WEAK}, {SKIPPED}", 1)],
)
def test_only_a_whole_answer_is_success(answer: str, status: int, tmp_path: Path) -> None:
    tool = tmp_path / "pip-audit"
    body = f'{{"dependencies": [{answer}]}}' if answer else ""
    tool.write_text(f"#!/bin/sh\ncat <<'E'\n{body}\nE\n")
    tool.chmod(0o755)
    done = subprocess.run([sys.executable, SCRIPT, tool], capture_output=True, text=True, check=False)
    assert done.returncode == status, done
    assert ("not complete" in done.stderr) == (SKIPPED in answer or not answer)

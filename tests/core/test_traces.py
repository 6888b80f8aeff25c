"""A failure names files and lines, and no directory of the machine."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from perdure.core.outcome import describe
from perdure.core.traces import traced

CODE = "import json\ndef read():\n    return json.loads('[')\n"


@pytest.mark.parametrize("by", ["path", "current directory"])
def test_a_failure_names_no_directory_of_the_machine(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "reading.py").write_text(CODE)
    if by == "path":
        monkeypatch.syspath_prepend(tmp_path)
    else:
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend("")
    error = ValueError()
    try:
        importlib.import_module("books.reading").read()
    except ValueError as raised:
        error = raised
    importlib.invalidate_caches()
    for name in ("books", "books.reading"):
        sys.modules.pop(name, None)

    text = traced(error)
    assert text is not None
    assert 'File "books/reading.py", line 3, in read' in text
    assert 'File "json/__init__.py", line ' in text
    assert str(tmp_path) not in text
    place = describe("read", error).place
    assert place == "books/reading.py:3 in read"

"""Write the frozen surfaces again: `.venv/bin/python -m tests.frozen`. Read the difference before you commit it."""

from __future__ import annotations

from pathlib import Path

from tests.frozen.surfaces import SURFACES, written

for surface in SURFACES:
    Path(__file__).with_name(f"{surface}.txt").write_text(written(surface))

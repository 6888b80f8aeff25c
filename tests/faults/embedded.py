"""A program that runs its app embedded: `python -m tests.faults.embedded`."""

from __future__ import annotations

from tests.faults.stages import five

if __name__ == "__main__":
    with five:
        five.run()

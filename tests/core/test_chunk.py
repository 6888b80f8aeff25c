"""A chunk is read below those headings that do not stand in it."""

from __future__ import annotations

import pytest

from perdure.core.chunk import Chunk


@pytest.mark.parametrize(
    ("heading", "text", "above"),
    [
        ("Manual\nSQL", "PostgreSQL has more.", "Manual\nSQL\n"),
        ("Manual\nSQL", "## SQL\n\nIt is old.", "Manual\n"),
        ("Chapter 3. Tables\nChapter\u00a03.\u00a0Tables", "Rows.", "Chapter 3. Tables\n"),
        ("LS(1)  Commands", "LS(1)     Commands\n\nlists", ""),
        ("A\n\nB", "none", "A\nB\n"),
        ("", "## SQL", ""),
    ],
)
def test_headings_are_compared_with_whole_lines(heading: str, text: str, above: str) -> None:
    assert Chunk("id", 0, 0, len(text), text, heading=heading).read == above + text

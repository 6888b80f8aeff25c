"""What the tests of extraction share: a warm process that reads documents in cells."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.pipelines.extract.reading import Cells


@pytest.fixture(scope="session")
def cells() -> Iterator[Cells]:
    opened = Cells()
    yield opened
    opened.close()

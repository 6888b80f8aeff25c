"""What the tests of pipelines share: a shelf of real documents."""

from __future__ import annotations

import pytest

from tests.pipelines.extract.shelf import Shelf


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("shelf"))

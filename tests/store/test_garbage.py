"""Garbage: blobs that no row names are collected a day after the last touch, and no others."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from perdure.engine.garbage import collect
from perdure.store.blobs import DirectoryBlobs
from perdure.store.operations import ItemOutput
from tests.store.making import ORG, World, document, output, save

DAY_S = 86_400


@pytest.fixture
def blobs(tmp_path: Path) -> DirectoryBlobs:
    return DirectoryBlobs(tmp_path / "blobs")


async def put(blobs: DirectoryBlobs, content: bytes, age_s: float) -> str:
    """The name of a blob that was touched that long ago."""
    digest = await blobs.put(content)
    path = await blobs.path(digest)
    assert path is not None
    os.utime(path, (time.time() - age_s,) * 2)
    return digest


async def test_a_blob_may_be_about_to_be_named_for_a_day(world: World, blobs: DirectoryBlobs) -> None:
    young, old = await put(blobs, b"young", DAY_S - 3_600), await put(blobs, b"old", DAY_S + 3_600)

    assert await collect(world.store, blobs) == 1

    assert (await blobs.exists(young), await blobs.exists(old)) == (True, False)


async def test_a_blob_that_a_row_names_stays(world: World, blobs: DirectoryBlobs) -> None:
    stage, item, content = [
        await put(blobs, text, 9 * DAY_S) for text in (b"of a stage", b"of an item", b"of a document")
    ]
    (id_,) = await world.add(document())
    await world.execute(
        "UPDATE document SET inline = NULL, blob = $3 WHERE org = $1 AND id = $2", ORG, id_, content
    )
    job = await world.take()
    kept = output(blob=stage), (ItemOutput("extract", "1", "f", 10, None, item),)
    assert await world.store.save(save(job, "chunk", output=kept[0], items=kept[1]))

    assert await collect(world.store, blobs) == 0

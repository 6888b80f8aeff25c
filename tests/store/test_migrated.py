"""A store that a newer release has migrated: a program that is open since before writes nothing, whatever the verb."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.engine.garbage import collect
from perdure.errors import SchemaNewer
from perdure.store.blobs import DirectoryBlobs, own
from perdure.store.operations import Promote
from perdure.store.sql_store import SqlStore
from perdure.store.webhooks import Webhook
from tests.store.making import ORG, QUEUE, World, document

LATER = "INSERT INTO migration (name, needs, applied_ms) VALUES ('9999_later', 99, 0)"
WEBHOOK = Webhook("w", ORG, "http://localhost:1", ("document.done",), "secret", "0:0", 0)
VERBS: dict[str, Callable[[SqlStore, str], Awaitable[Any]]] = {
    "promote": lambda store, _: store.promote(Promote()),  # the only one here that goes through the flusher
    "prune": lambda store, _: store.prune(0, 0),
    "purge": lambda store, id_: store.purge([(ORG, id_)]),
    "hold": lambda store, _: store.hold("ocr", "maintenance", "ann"),
    "release": lambda store, _: store.release("ocr", "ann"),
    "pause": lambda store, _: store.pause(QUEUE, True, "ann"),
    "limit": lambda store, _: store.limit("tenant", 1, None, "ann"),
    "weigh": lambda store, _: store.weigh(ORG, 2.0, "ann"),
    "declare": lambda store, _: store.declare(["new"], ["new"]),
    "register": lambda store, _: store.register("worker", "late", [QUEUE]),
    "record_calls": lambda store, _: store.record_calls([("ocr", 0, True, 1, 1, 0)]),
    "forget_feed": lambda store, _: store.forget_feed(0, 10),
    "add_key": lambda store, _: store.add_key(ORG, "ci", ["read"], "ann"),
    "add_webhook": lambda store, _: store.add_webhook(WEBHOOK, "ann"),
    "act": lambda store, _: store.act("ann", "export", ORG, "all", ""),
    "outbox_away": lambda store, _: store.outbox_away("no broker"),
    "move_in": lambda store, _: store.move_in("", "elsewhere"),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_verb_is_refused_after_a_migration_that_needs_a_newer_release(world: World, verb: str) -> None:
    (id_,) = await world.add(document())
    await world.execute(LATER)

    with pytest.raises(SchemaNewer, match="upgrade this program"):
        await VERBS[verb](world.store, id_)

    assert isinstance(world.store.lost, SchemaNewer), "whoever runs it learns that it is to end"


async def test_verbs_are_done_after_a_migration_that_needs_no_newer_release(world: World) -> None:
    await world.execute(LATER.replace("99, 0", "1, 0"))

    await world.store.pause(QUEUE, True, "ann")

    assert [queue.paused for queue in await world.store.queues()] == [True]


async def test_blobs_are_not_collected_after_a_migration_that_needs_a_newer_release(
    world: World, tmp_path: Path
) -> None:
    """Rows that only the newer release knows of may name them."""
    blobs = DirectoryBlobs(tmp_path / "blobs")
    await own(world.store, blobs)
    kept = await blobs.put(b"named elsewhere")
    await world.execute(LATER)

    assert await collect(world.store, blobs, older_than_ms=-1) == 0

    assert await blobs.exists(kept)

"""Who may delete blobs: a place has one owner, the store whose id is in its mark.

Blobs that no row names are collected, and a store knows only its own rows. So a place that another store has marked is
refused, and so is a place without the content that this store's rows name. A copy of a store has the same id as its
original; the mark also says where the database is, which tells them apart. `take_over` is for the one that goes on
after a copy or a restore.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict
from typing import TYPE_CHECKING

from perdure.core.frozen import frozen
from perdure.errors import SettingInvalid, StoreBusy

if TYPE_CHECKING:
    from perdure.store.blobs.base import Blobs
    from perdure.store.identity import Identity
    from perdure.store.sql_store import SqlStore

#: The mark's name in its place; no blob is called so.
MARK = "OWNER"
#: The place of blobs that are rows of the store itself.
INSIDE = "inside"
TAKE_OVER = "perdure migrate --take-blobs"


@frozen
class Mark:
    """Whose the blobs of a place are; `location` is empty where they lie beside the database and move with it."""

    store: str
    place: str
    location: str

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Mark:
        """SettingInvalid where it is something else."""
        try:
            found = json.loads(data)
            return cls(str(found["store"]), str(found["place"]), str(found["location"]))
        except (ValueError, KeyError, TypeError) as error:
            raise SettingInvalid(
                f"{where} has a damaged {MARK}; if this store is its owner, run `{TAKE_OVER}`",
                code="blobs_owned",
            ) from error


async def own(store: SqlStore, blobs: Blobs) -> None:
    """Make sure that the place of the blobs is this store's, and mark it if it is nobody's: SettingInvalid."""
    who = await store.identity()
    if blobs.inside:
        await _settle(store, who, INSIDE, blobs)
        return
    mark = await blobs.mark()
    _check_owner(mark, who, blobs)
    location = "" if blobs.beside else await store.location()
    if mark is None:
        await _check_complete(store, who, "", blobs)
        mark = await blobs.set_mark(Mark(who.id, uuid.uuid4().hex, location))
        _check_owner(mark, who, blobs)  # another store may have been quicker
    if mark.location and location and not _is_same(mark.location, location):
        raise SettingInvalid(
            f"the blobs in {blobs.where} are those of this store at {mark.location}, and here it is at {location}. "
            f"If it was moved or restored and only this one goes on, run `{TAKE_OVER}`; if this one is a copy, give it "
            "a copy of the blobs in a place of its own (PERDURE_BLOBS) and run the same there",
            code="blobs_owned",
        )
    await _settle(store, who, mark.place, blobs)


async def take_over(store: SqlStore, blobs: Blobs) -> None:
    """Mark the place as this store's, also if another store owned it: after a copy or a restore.

    Raises: SettingInvalid if the content that its rows name is missing.
    """
    for digest in await store.some_blobs():
        if not await blobs.exists(digest):
            raise _elsewhere(blobs)
    who = await store.identity()
    place = INSIDE if blobs.inside else uuid.uuid4().hex
    location = "" if blobs.beside else await store.location()
    await blobs.set_mark(Mark(who.id, place, location), over=True)
    await store.move_in(who.place, place)
    await own(store, blobs)


def _is_same(one: str, other: str) -> bool:
    """Whether two locations are those of one database.

    A SQLite file has the form PATH#DEVICE:INODE. A copy has another inode. One file may have several paths (mounts of
    a volume), and its device may get another number when the host boots, but both do not change at once.
    """
    (path, device, file), (other_path, other_device, other_file) = map(_parts, (one, other))
    return file == other_file and (path == other_path or device == other_device)


def _parts(location: str) -> tuple[str, str, str]:
    path, _, status = location.rpartition("#")
    device, _, file = status.rpartition(":")
    return path, device, file


def _check_owner(mark: Mark | None, who: Identity, blobs: Blobs) -> None:
    if mark is not None and mark.store != who.id:
        raise SettingInvalid(
            f"the blobs in {blobs.where} belong to another store (id {mark.store}; this one is {who.id}), and each "
            "would delete the other's content; name another place with PERDURE_BLOBS, or, if that store is gone for "
            f"good, run `{TAKE_OVER}`",
            code="blobs_owned",
        )


async def _check_complete(store: SqlStore, who: Identity, place: str, blobs: Blobs) -> None:
    if who.place not in ("", place) and await store.some_blobs():
        raise _elsewhere(blobs)


def _elsewhere(blobs: Blobs) -> SettingInvalid:
    return SettingInvalid(
        f"the content of this store is not in {blobs.where}: set PERDURE_BLOBS to the place where it was, check that "
        f"its disk is mounted, or copy everything from there, {MARK} included",
        code="blobs_elsewhere",
    )


async def _settle(store: SqlStore, who: Identity, place: str, blobs: Blobs) -> None:
    if who.place == place:
        return
    await _check_complete(store, who, place, blobs)
    if not await store.move_in(who.place, place) and (await store.identity()).place != place:
        raise StoreBusy("another process names another place for the blobs of this store; try again")

"""What is kept of documents that have ended, where a limit is set: by default all of it, for ever.

Dead documents beyond their age or number are exported to a file in the archive first (as `perdure dead export` does, so
`perdure dead import` brings them back), and only what is in that file is deleted. Done and cancelled ones beyond their
age are deleted with their history, their chunks and what their stages saved. Run by one worker at a time and by
`perdure sweep`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from datetime import UTC, datetime
from pathlib import Path

from perdure.core.frozen import frozen
from perdure.errors import PerdureError, SettingInvalid, StoreError
from perdure.operate.choosing import Choice
from perdure.operate.purge import Purged, purging
from perdure.settings import Settings
from perdure.store.blobs import CheckedBlobs
from perdure.store.dead import Where
from perdure.store.private import make_directory
from perdure.store.sql_store import SqlStore

WHO = "retention"
RUN_MAX = 5_000  # dead documents that go into one file
PAGE = 1_000
BATCH = 50
_log = logging.getLogger("perdure.retention")


@frozen
class Limits:
    """None: nothing is deleted for that."""

    dead_age_ms: int | None = None
    dead_count: int | None = None  # of each queue
    done_age_ms: int | None = None
    archive: Path | None = None
    file_mode: int = 0o600

    @property
    def any(self) -> bool:
        return self.dead_limited or self.done_age_ms is not None

    @property
    def dead_limited(self) -> bool:
        return self.dead_age_ms is not None or self.dead_count is not None


@frozen
class Retained:
    """How many documents were deleted, and the files that the dead ones are in."""

    dead: int = 0
    done: int = 0
    files: tuple[str, ...] = ()
    kept: int = 0  # dead ones that could not be exported whole


def limits_of(settings: Settings) -> Limits:
    """What the settings ask for; SettingInvalid where nothing says where dead documents are exported to."""
    archive = Path(settings.archive).absolute() if settings.archive is not None else None
    limits = Limits(
        _ms(settings.dead_age_s),
        settings.dead_count,
        _ms(settings.done_age_s),
        archive,
        int(settings.file_mode, 8),
    )
    if limits.dead_limited and archive is None:
        raise SettingInvalid(
            "PERDURE_DEAD_AGE_S and PERDURE_DEAD_COUNT delete dead documents, which are exported before: "
            "say to which directory with PERDURE_ARCHIVE"
        )
    return limits


def _ms(seconds: int | None) -> int | None:
    return None if seconds is None else seconds * 1000


class Retaining:
    """The verb of an app; see `app.Perdure`."""

    keeping: Limits
    store: SqlStore
    blobs: CheckedBlobs

    async def retain(self) -> Retained:
        limits = self.keeping
        if not limits.any or not await self.store.lead_retention():
            return Retained()
        now_ms = await self.store.now_ms()
        told = await self._retain_dead(limits, now_ms) if limits.dead_limited else Retained()
        done = 0 if limits.done_age_ms is None else await self._retain_done(now_ms - limits.done_age_ms)
        return Retained(told.dead, done, told.files, told.kept)

    async def _retain_dead(self, limits: Limits, now_ms: int) -> Retained:
        dead, kept, files = 0, 0, []
        for queue in await self.store.dead_queues():
            while True:
                before_ms = await self.store.dead_beyond(
                    queue, limits.dead_count, _earlier(now_ms, limits.dead_age_ms), RUN_MAX
                )
                if before_ms is None:
                    break
                target = _target(limits, queue, now_ms)
                told = await self._archive(queue, before_ms, target)
                if not told.purged:  # those that are left cannot be exported
                    kept += told.refused
                    target.unlink(missing_ok=True)
                    break
                dead += told.purged
                files.append(str(target))
        return Retained(dead, 0, tuple(files), kept)

    async def _archive(self, queue: str, before_ms: int, target: Path) -> Purged:
        choice = Choice(Where(queue=queue, before_ms=before_ms), f"of queue {queue}, beyond their limit")
        doing = purging(self.store, self.blobs, choice, target, WHO, "beyond their limit")
        return [told async for told in doing][-1]

    async def _retain_done(self, before_ms: int) -> int:
        done, after = 0, ("", "")
        try:
            while page := await self.store.ended(after, PAGE):
                after = (page[-1][0], page[-1][1])
                seen = {
                    (org, id_): generation
                    for org, id_, state, ended_ms, generation in page
                    if state != "dead" and 0 < ended_ms < before_ms
                }
                old = list(seen)
                for n in range(0, len(old), BATCH):
                    answers = await self.store.purge(old[n : n + BATCH], ("done", "cancelled"), seen)
                    done += list(answers.values()).count("purged")
        finally:
            if done:
                await self.store.act(WHO, "purge", None, f"done: {done} purged", "beyond their age")
        return done

    async def retaining(self, every_s: float) -> None:
        """Keep to the limits until this is cancelled."""
        while True:
            try:
                if (told := await self.retain()).dead or told.done or told.kept:
                    _log.info(
                        "retention: %s dead documents are in %s, %s done ones are gone, %s could not be exported",
                        told.dead, ", ".join(told.files) or "no file", told.done, told.kept,
                    )  # fmt: skip
            except StoreError:
                pass  # the next turn tries again
            except (PerdureError, OSError) as error:
                _log.error("retention: nothing more is deleted until this is put right: %s", error)
            await asyncio.sleep(every_s)


def _earlier(now_ms: int, age_ms: int | None) -> int | None:
    return None if age_ms is None else now_ms - age_ms


def _target(limits: Limits, queue: str, now_ms: int) -> Path:
    """A file that is not there yet."""
    archive = limits.archive or Path()
    make_directory(archive, limits.file_mode)
    when = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    name = f"dead-{re.sub(r'[^A-Za-z0-9_-]', '_', queue)}-{when}"
    number = 1
    while (path := archive / f"{name}-{number}.jsonl.gz").exists():
        number += 1
    return path

"""A place of blobs has one owner: no store collects another's content, and a copy is told from its original."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from perdure import AsyncPerdure, Document, Perdure, Pipeline
from perdure.cli import child
from perdure.engine import working
from perdure.engine.garbage import collect
from perdure.errors import SettingInvalid, StoreUnavailable
from perdure.settings import Settings
from perdure.store.blobs import DirectoryBlobs, S3Blobs, checked, open_blobs
from perdure.store.blobs.owning import Mark
from perdure.store.open import open_store
from perdure.testing import drain, tick, trial
from tests.doors.command import refused, succeeded
from tests.store.s3_server import BUCKET, S3Server, s3_server

notes = Pipeline("notes")
LARGE = "x" * 50_000


@notes.stage
def read(doc: Document) -> int:
    return len(doc.text)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with s3_server() as server:
        yield server


@pytest.fixture(params=["directory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Somewhere that several stores can reach."""
    if request.param == "directory":
        return str(tmp_path / "shared")
    server: S3Server = request.getfixturevalue("bucket")
    return server.blobs_url()


def app(tmp_path: Path, name: str, place: str | None) -> Perdure:
    return Perdure(f"sqlite:///{tmp_path}/{name}.db", pipelines=[notes], blobs=place)


def code_of(app: Perdure) -> str:
    with pytest.raises(SettingInvalid) as told, app:
        pass
    return told.value.code


def test_a_second_store_is_refused_and_nothing_is_collected(place: str, tmp_path: Path) -> None:
    with app(tmp_path, "first", place) as first:
        id_ = first.add(text=LARGE, pipeline=notes).id
        assert code_of(app(tmp_path, "second", place)) == "blobs_owned"

        async def collect_as_another() -> int:
            store = open_store(f"sqlite:///{tmp_path}/second.db")
            await store.open()
            try:
                return await collect(
                    store, open_blobs(place, lambda: DirectoryBlobs(tmp_path)), older_than_ms=0
                )
            finally:
                await store.close()

        with pytest.raises(SettingInvalid, match="belong to another store"):
            asyncio.run(collect_as_another())
        assert first.run_until_idle().done == 1
        assert first.output(id_, "read") == len(LARGE)
    with app(tmp_path, "first", place) as again:
        assert again.status(id_).state == "done"


def test_a_copy_beside_its_original_is_refused_until_it_takes_over(place: str, tmp_path: Path) -> None:
    with app(tmp_path, "first", place) as first:
        first.add(text=LARGE, pipeline=notes)
    shutil.copy(tmp_path / "first.db", tmp_path / "copy.db")
    assert code_of(app(tmp_path, "copy", place)) == "blobs_owned"

    variables: dict[str, Any] = {"PERDURE_BLOBS": place} | {
        k: v for k, v in os.environ.items() if k.startswith("AWS_")
    }
    store = f"sqlite:///{tmp_path}/copy.db"
    assert "this store's" in succeeded("migrate", "--take-blobs", "--store", store, **variables)
    with app(tmp_path, "copy", place) as copy:
        assert copy.run_until_idle().done == 1
    assert code_of(app(tmp_path, "first", place)) == "blobs_owned"


def test_rows_whose_content_is_elsewhere_are_not_run(tmp_path: Path) -> None:
    first, other = str(tmp_path / "one"), str(tmp_path / "two")
    with app(tmp_path, "first", first) as opened:
        opened.add(text="small", pipeline=notes)
    with app(tmp_path, "first", other) as opened:  # no row names a blob yet, so any place will do
        opened.add(text=LARGE, pipeline=notes)
    for wrong in (first, str(tmp_path / "three"), None):
        assert code_of(app(tmp_path, "first", wrong)) == "blobs_elsewhere"
        said = refused(2, "blobs_elsewhere", "migrate", "--take-blobs", "--store", f"sqlite:///{tmp_path}/first.db",
                       PERDURE_BLOBS=wrong or "")  # fmt: skip
        assert "mounted" in said
    shutil.copytree(other, tmp_path / "moved")
    with app(tmp_path, "first", str(tmp_path / "moved")) as opened:
        assert opened.run_until_idle().done == 2


def test_a_store_moves_with_the_blobs_beside_it(tmp_path: Path) -> None:
    with app(tmp_path, "first", None) as opened:
        opened.add(text=LARGE, pipeline=notes)
    (tmp_path / "away").mkdir()
    for name in ("first.db", "first.db.d"):
        shutil.move(tmp_path / name, tmp_path / "away" / name)
    with app(tmp_path / "away", "first", None) as opened:
        assert opened.run_until_idle().done == 1


def test_a_directory_that_was_unmounted_takes_nothing(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path / "disk")

    async def scene() -> None:
        await blobs.set_mark(Mark("store", "place", ""))
        await blobs.put(b"there")
        (tmp_path / "disk").rename(tmp_path / "unmounted")
        with pytest.raises(StoreUnavailable, match="mounted"):
            await blobs.put(b"gone")
        assert not (tmp_path / "disk").exists()

    asyncio.run(scene())


def test_one_database_under_two_paths_is_no_copy(tmp_path: Path) -> None:
    place = str(tmp_path / "shared")
    (tmp_path / "real").mkdir()
    with app(tmp_path / "real", "first", place) as first:
        first.add(text=LARGE, pipeline=notes)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with app(tmp_path / "link", "first", place) as linked:
        linked.add(text=LARGE + "2", pipeline=notes)
    (tmp_path / "mounted").mkdir()
    os.link(
        tmp_path / "real" / "first.db", tmp_path / "mounted" / "first.db"
    )  # like another mount of its volume
    with app(tmp_path / "mounted", "first", place) as mounted:
        assert mounted.run_until_idle().done == 2


def test_a_database_whose_device_has_another_number_since_the_boot_is_no_copy(tmp_path: Path) -> None:
    place = tmp_path / "shared"
    with app(tmp_path, "first", str(place)):
        pass
    mark = Mark.from_bytes((place / "OWNER").read_bytes(), "")
    for location, same in (
        (re.sub(r"#\d+:", "#0:", mark.location), True),
        (re.sub(r".*#\d+:", "/other.db#0:", mark.location), False),
        (mark.location + "1", False),
    ):
        asyncio.run(DirectoryBlobs(place).set_mark(Mark(mark.store, mark.place, location), over=True))
        if same:
            with app(tmp_path, "first", str(place)):
                pass
        else:
            assert code_of(app(tmp_path, "first", str(place))) == "blobs_owned"


async def test_of_two_who_mark_at_once_one_owns(place: str, tmp_path: Path) -> None:
    blobs = [open_blobs(place, lambda: DirectoryBlobs(tmp_path)) for _ in range(5)]
    marks = await asyncio.gather(
        *(one.set_mark(Mark(f"store {n}", "place", "")) for n, one in enumerate(blobs))
    )
    assert len({mark.store for mark in marks}) == 1
    assert await blobs[0].mark() == marks[0]
    assert (await blobs[0].set_mark(Mark("later", "place", ""), over=True)).store == "later"


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK])
async def test_a_file_system_without_hard_links_is_marked_once(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    blobs = [DirectoryBlobs(tmp_path / "blobs") for _ in range(5)]
    marks = await asyncio.gather(
        *(one.set_mark(Mark(f"store {n}", "place", "")) for n, one in enumerate(blobs))
    )
    assert len({mark.store for mark in marks}) == 1
    assert (await blobs[0].set_mark(Mark("later", "place", ""))).store == marks[0].store


async def test_a_bucket_without_conditional_puts_is_marked_once(bucket: S3Server) -> None:
    bucket.conditional = False
    blobs = S3Blobs(BUCKET, "p", endpoint=bucket.url, region="x", backoff_base_s=0.01)

    assert (await blobs.set_mark(Mark("first", "place", ""))).store == "first"
    assert (await blobs.set_mark(Mark("second", "place", ""))).store == "first"
    assert (await blobs.set_mark(Mark("second", "place", ""), over=True)).store == "second"


async def test_a_schema_says_where_it_is(postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    await connection.execute("CREATE SCHEMA second")
    await connection.close()
    found = []
    for url in (postgres_url, postgres_url, f"{postgres_url}&search_path=second"):
        store = open_store(url)
        await store.open()
        found.append(await store.location())
        await store.close()
    assert found[0] == found[1] != found[2]
    assert re.fullmatch(r"cluster \d+ database \d+ schema \d+", found[0])


# --- a place that cannot be reached when the store is opened --------------------------------------------


@pytest.fixture
def unreachable(bucket: S3Server) -> S3Server:
    """A bucket that answers nothing until its `failures` are cleared."""
    bucket.failures = [403] * 100_000
    return bucket


def written(bucket: S3Server) -> list[str]:
    return [asked for asked in bucket.requests if not asked.startswith(("GET", "HEAD"))]


def test_an_app_starts_without_its_blobs_and_only_calls_that_need_them_fail(
    unreachable: S3Server, tmp_path: Path
) -> None:
    with app(tmp_path, "first", unreachable.blobs_url()) as first:
        small = first.add(text="x", pipeline=notes).id
        for needs_blobs in (lambda: first.add(text=LARGE, pipeline=notes), first.run_until_idle):
            with pytest.raises(StoreUnavailable) as told:
                needs_blobs()
            assert told.value.code == "blobs_refused"
        assert written(unreachable) == []
        unreachable.failures.clear()
        large = first.add(text=LARGE, pipeline=notes).id
        assert first.run_until_idle().done == 2
        assert [first.output(id_, "read") for id_ in (small, large)] == [1, len(LARGE)]
    assert any(key.endswith("OWNER") for key in unreachable.objects)


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_key_of_the_bucket_kills_and_charges_no_document(
    bucket: S3Server, tmp_path: Path, status: int
) -> None:
    """However often it is tried: a worker with the right key runs it at once."""
    settings = Settings(blobs=bucket.blobs_url())
    with trial(notes, store=f"sqlite:///{tmp_path}/a.db", settings=settings) as tried:
        large = tried.add(text=LARGE, pipeline=notes).id
        bucket.failures = [status] * 100_000
        for _ in range(120):  # more than postpones_max
            tried.clock.advance(400)
            tick(tried)
        assert tried.status(large).state in ("queued", "waiting", "held")
        told = tried.attempts(large)
        assert {(a.outcome, a.error_code, a.charged) for a in told} == {("hold", "blobs_refused", False)}
        assert len(told) >= 100
        assert "AWS_ACCESS_KEY_ID" in (told[-1].message or "")
        assert "correct the key of the bucket" in tried.why(large).sentence
        bucket.failures.clear()
        assert drain(tried).done == 1


def test_an_app_starts_although_the_place_of_its_blobs_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        answers, read = asyncio.Event(), DirectoryBlobs.mark

        async def mark(self: DirectoryBlobs) -> Mark | None:
            await answers.wait()
            return await read(self)

        monkeypatch.setattr(DirectoryBlobs, "mark", mark)
        monkeypatch.setattr(checked, "START_S", 0.01)
        service = AsyncPerdure(f"sqlite:///{tmp_path}/a.db", pipelines=[notes])
        async with asyncio.timeout(60):
            await service.start()
            await service.add(text="x", pipeline=notes)
            large = asyncio.create_task(service.add(text=LARGE, pipeline=notes))
            assert not (await asyncio.wait({large}, timeout=0.05))[0]
            answers.set()
            await large
            await service.close()

    asyncio.run(run())
    assert (tmp_path / "a.db.d" / "blobs" / "OWNER").exists()


def test_nothing_is_written_to_a_place_whose_owner_shows_later(bucket: S3Server, tmp_path: Path) -> None:
    with app(tmp_path, "first", bucket.blobs_url()) as first:
        first.add(text=LARGE, pipeline=notes)
    bucket.failures = [403] * 100_000
    with app(tmp_path, "second", bucket.blobs_url()) as second:
        bucket.failures.clear()
        bucket.requests.clear()
        for writes in (
            lambda: second.add(text=LARGE + "y", pipeline=notes),
            second.run_until_idle,
            lambda: second._call(collect(second.service.store, second.service.blobs, older_than_ms=0)),
            lambda: second._call(second.service.blobs.delete("a" * 64)),
            lambda: second._call(second.service.blobs.tidy(0)),
        ):
            with pytest.raises(SettingInvalid) as told:
                writes()
            assert told.value.code == "blobs_owned"
        assert written(bucket) == []


def test_a_worker_waits_for_its_blobs(
    unreachable: S3Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> int:
        service = AsyncPerdure(f"sqlite:///{tmp_path}/a.db", pipelines=[notes], blobs=unreachable.blobs_url())
        await service.start()
        async with asyncio.timeout(90):
            id_ = (await service.add(text="x", pipeline=notes)).id
            running = asyncio.create_task(service.run())
            while "waiting for the blobs" not in caplog.text:
                await asyncio.sleep(0.01)
            assert not service.works
            unreachable.failures.clear()
            while (await service.status(id_)).state != "done":
                await asyncio.sleep(0.01)
            await service.stop()
            await running
        await service.close()
        return len(written(unreachable))

    assert asyncio.run(run()) == 1  # the mark


@pytest.mark.parametrize("hangs", [False, True], ids=["between two looks", "in a look"])
def test_a_worker_that_waits_for_its_blobs_stops_at_once(
    unreachable: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    hangs: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The next look would be in an hour, or it never ends."""
    monkeypatch.setattr(working, "WAIT_S", (3_600.0,))

    async def run() -> None:
        service = AsyncPerdure(f"sqlite:///{tmp_path}/a.db", pipelines=[notes], blobs=unreachable.blobs_url())
        await service.start()
        looking = asyncio.Event()
        check = service.blobs.check

        async def looked() -> None:
            looking.set()
            await (asyncio.Event().wait() if hangs else check())

        monkeypatch.setattr(service.blobs, "check", looked)
        async with asyncio.timeout(90):
            running = asyncio.create_task(service.run())
            await looking.wait()
            while not hangs and not caplog.text.count("waiting for the blobs"):
                await asyncio.sleep(0.01)
            await service.stop()
            await running
        await service.close()

    asyncio.run(run())


def test_the_process_of_a_worker_waits_before_it_registers(
    unreachable: S3Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        service = AsyncPerdure(f"sqlite:///{tmp_path}/a.db", pipelines=[notes], blobs=unreachable.blobs_url())
        starting = asyncio.create_task(child._start(service))
        async with asyncio.timeout(90):
            while "waiting for the store: the blobs in s3://" not in caplog.text:
                await asyncio.sleep(0.01)
            assert not starting.done()
            unreachable.failures.clear()
            await starting
        await service.close()

    asyncio.run(run())
    assert len(written(unreachable)) == 1  # the mark

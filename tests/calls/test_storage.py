"""Blobs in a bucket go through the policy `storage`: STORAGE_RETRY_* counts, and an outage is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from perdure.calls import presets
from perdure.calls.dependency import forget_all
from perdure.calls.storage import StorageGuard
from perdure.calls.timing import TIMING
from perdure.errors import StoreUnavailable
from perdure.service import AsyncPerdure
from perdure.store.blobs import CheckedBlobs, s3
from perdure.store.blobs.s3 import PART_BYTES, S3Blobs
from perdure.testing import no_wait
from tests.calls.making import at_work
from tests.store.s3_server import PAGE, S3Server, s3_server


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with s3_server() as server:
        yield server


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    def clear() -> None:
        forget_all()
        for preset in presets.PRESETS.values():
            preset.cache_clear()

    clear()
    yield
    clear()


def guarded(bucket: S3Server, monkeypatch: pytest.MonkeyPatch, retries: int) -> S3Blobs:
    monkeypatch.setenv("STORAGE_RETRY_MAX", str(retries))
    monkeypatch.setenv("STORAGE_RETRY_BASE_MS", "1")
    return S3Blobs.from_url(bucket.blobs_url(), StorageGuard())


@pytest.mark.parametrize("retries", [0, 2])
def test_requests_are_made_as_the_variable_says(
    bucket: S3Server, monkeypatch: pytest.MonkeyPatch, retries: int
) -> None:
    blobs = guarded(bucket, monkeypatch, retries)
    digest = sha256(b"x").hexdigest()

    async def story() -> None:
        for ask in (lambda: blobs.put(b"x"), lambda: blobs.get(digest), lambda: blobs.exists(digest)):
            bucket.failures, bucket.requests = [503] * 20, []
            forget_all()
            with pytest.raises(StoreUnavailable):
                await ask()
            assert len(bucket.requests) == 1 + retries

    with no_wait():
        asyncio.run(story())


def test_a_bucket_that_hiccups_is_asked_again(
    bucket: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blobs = guarded(bucket, monkeypatch, 3)
    large = tmp_path / "large"
    large.write_bytes(b"x" * (2 * PART_BYTES + 1))

    async def story() -> None:
        bucket.failures = [503, 500]
        digest = await blobs.put(b"patience")
        forget_all()  # or the limiter would space the requests
        bucket.failures = [503]
        assert await blobs.get(digest) == b"patience"
        forget_all()
        bucket.failures = [500]
        assert (await blobs.open_copy(digest, tmp_path)).read_bytes() == b"patience"
        assert [found async for found, _ in blobs.list()] == [digest]
        forget_all()
        bucket.failures, bucket.requests = [503], []
        digest, _ = await blobs.put_file(large)
        parts = [one for one in bucket.requests if one.startswith("PUT") and "partNumber" in one]
        assert len(parts) in (3, 4)  # the object is not begun again
        assert await blobs.delete(digest)

    with no_wait():
        asyncio.run(story())


def test_a_missing_object_is_asked_for_once(bucket: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = guarded(bucket, monkeypatch, 3)
    assert asyncio.run(blobs.exists(sha256(b"x").hexdigest())) is False
    assert len(bucket.requests) == 2  # and once where it would be set aside


def test_an_outage_is_noticed_and_charges_no_document(
    bucket: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs, state = guarded(bucket, monkeypatch, 0), presets.storage_upload().dependency

    async def story() -> None:
        bucket.failures = [503]
        with at_work(needs=("storage",)) as work:
            with pytest.raises(StoreUnavailable):
                await blobs.put(b"x")
            assert (work.requests, state.failures) == ({}, 1)
            state.breaker.trip(state.limiter.epoch_s)
            before = len(bucket.requests)
            with pytest.raises(StoreUnavailable, match="down"):
                await blobs.put(b"x")
            assert len(bucket.requests) == before

    asyncio.run(story())


def test_a_turn_that_comes_late_is_waited_for(bucket: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs, limiter = guarded(bucket, monkeypatch, 0), presets.storage_upload().dependency.limiter
    now_s = TIMING.clock()
    limiter.throttled(now_s)
    for _ in range(10):
        limiter.ask(now_s, 1e9)

    with no_wait() as waits, pytest.raises(StoreUnavailable):
        asyncio.run(blobs.put(b"x"))  # without a wait no turn ever comes
    assert len(waits) > 1
    assert 30 < sum(waits) <= 60
    assert bucket.requests == []


def test_an_app_guards_its_bucket(bucket: S3Server, tmp_path: Path) -> None:
    service = AsyncPerdure(f"sqlite:///{tmp_path / 'a.db'}", blobs=bucket.blobs_url())
    assert isinstance(service.blobs, CheckedBlobs)
    assert isinstance(service.blobs._guard, StorageGuard)


def test_a_listing_goes_through_the_policy(bucket: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = guarded(bucket, monkeypatch, 2)

    async def listed() -> list[str]:
        return [digest async for digest, _ in blobs.list()]

    async def story() -> None:
        digests = sorted([await blobs.put(bytes([n])) for n in range(10)])
        monkeypatch.setattr(s3, "PAGE", PAGE)
        state = presets.storage_download().dependency
        forget_all()
        bucket.requests.clear()
        assert sorted(await listed()) == digests
        assert state.requests == len(bucket.requests) + 1  # the end of the listing asks nothing

        forget_all()
        bucket.failures, bucket.requests = [503], []
        assert sorted(await listed()) == digests
        assert state.failures == 1

        forget_all()
        bucket.failures, bucket.requests = [503] * 20, []
        with pytest.raises(StoreUnavailable):
            await listed()
        assert len(bucket.requests) == state.requests == 3

        forget_all()
        bucket.failures, bucket.requests = [], []
        state.held = "a person holds it"
        with pytest.raises(StoreUnavailable, match="storage is down"):
            await listed()
        assert bucket.requests == []
        forget_all()

    with no_wait():
        asyncio.run(story())


def test_a_listing_that_fails_in_the_middle_goes_on_where_it_was(
    bucket: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = guarded(bucket, monkeypatch, 2)
    monkeypatch.setattr(s3, "PAGE", PAGE)

    async def story() -> None:
        digests = [await blobs.put(bytes([n])) for n in range(10)]
        bucket.requests.clear()
        found: list[str] = []
        async for digest, _ in blobs.list():
            found.append(digest)
            if len(found) == 4:
                bucket.failures = [503]
        assert sorted(found) == sorted(digests)
        assert len(bucket.requests) < 9  # it did not begin again

    with no_wait():
        asyncio.run(story())

"""Opening: a wrong address, path or server is refused at once, in words that say what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.errors import SettingInvalid, StoreError, StoreUnavailable
from perdure.store.open import open_store
from perdure.store.sqlite import refuse_network_filesystem
from tests.store.making import ORG, document


@pytest.mark.parametrize(
    "url",
    [
        "", "perdure.db", "/var/lib/perdure.db", "sqlite", "sqlite:perdure.db", "sqlite://", "sqlite:///", "sqlite:////",
        "sqlite:///:memory:", "sqlite://perdure.db", "sqlite://host/perdure.db", "mysql://u@h/d", "postgres:u@h/d",
        "http://h", "SQLite:///x.db",
    ],
)  # fmt: skip
def test_an_address_in_another_form_is_refused_with_the_accepted_ones(url: str) -> None:
    with pytest.raises(SettingInvalid) as caught:
        open_store(url)

    assert caught.value.code == "store_url_invalid"
    assert "sqlite:///" in str(caught.value)
    assert "postgresql://" in str(caught.value)


async def test_a_path_may_be_relative_or_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    relative = open_store("sqlite:///books.db")
    await relative.open()
    added = await relative.add([document()])
    await relative.close()
    absolute = open_store(f"sqlite:///{tmp_path}/books.db")
    await absolute.open()

    assert await absolute.document(ORG, added[0].id) is not None
    await absolute.close()


async def test_a_missing_directory_is_named_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"nowhere does not exist; create it"):
        await open_store(f"sqlite:///{tmp_path}/nowhere/perdure.db").open()

    assert list(tmp_path.iterdir()) == []


async def test_a_place_in_which_nothing_can_be_made_is_named() -> None:
    with pytest.raises(
        StoreUnavailable, match=r"cannot open /proc/perdure\.db\.d: No such file or directory"
    ):
        await open_store("sqlite:////proc/perdure.db").open()


async def test_a_directory_for_locks_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "perdure.db.d").write_text("somebody's file")

    with pytest.raises(StoreUnavailable, match=r"cannot open .*perdure\.db\.d/locks: Not a directory"):
        await open_store(f"sqlite:///{tmp_path}/perdure.db").open()


async def test_a_file_that_is_not_a_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear reader, this is a letter. " * 100)
    before = path.read_bytes()

    with pytest.raises(StoreError, match="not a SQLite database") as caught:
        await open_store(f"sqlite:///{path}").open()

    assert caught.value.code == "store_invalid"
    assert path.read_bytes() == before


async def test_a_directory_is_not_a_database(tmp_path: Path) -> None:
    (tmp_path / "perdure.db").mkdir()

    with pytest.raises(StoreUnavailable, match="check the path"):
        await open_store(f"sqlite:///{tmp_path}/perdure.db").open()


async def test_a_path_that_passes_through_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreUnavailable):
        await open_store(f"sqlite:///{tmp_path}/file/perdure.db").open()


async def test_a_store_that_could_not_be_opened_can_be_opened_later(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/later/perdure.db")
    with pytest.raises(StoreUnavailable):
        await store.open()
    (tmp_path / "later").mkdir()

    await store.open()
    assert (await store.add([document()]))[0].answer == "added"
    await store.close()


@pytest.mark.parametrize("url", ["postgresql://u@127.0.0.1:1/d", "postgresql://u@/d?host=/nowhere"])
async def test_a_postgresql_that_does_not_answer_is_unavailable(url: str) -> None:
    with pytest.raises(StoreUnavailable, match="check the address"):
        await open_store(url).open()


async def test_a_database_that_does_not_exist_is_a_wrong_setting(postgres_url: str) -> None:
    wrong = postgres_url.replace("perdure_test_", "perdure_missing_")

    with pytest.raises(SettingInvalid, match="database"):
        await open_store(wrong).open()


@pytest.mark.parametrize("wrong", ["u@host:port/d", "u@host/d?sslmode=perhaps"])
async def test_a_malformed_address_is_a_wrong_setting(wrong: str) -> None:
    with pytest.raises(SettingInvalid, match="malformed"):
        await open_store(f"postgresql://{wrong}").open()


# --- network file systems -----------------------------------------------------------------------------


def mounts(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "mounts"
    path.write_text("".join(f"{line} rw 0 0\n" for line in ("/dev/sda1 / ext4", *lines)))
    return path


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "fuse.sshfs", "9p"])
def test_a_network_file_system_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(SettingInvalid, match=kind) as caught:
        refuse_network_filesystem(tmp_path / "perdure.db", mounts(tmp_path, f"server:/x {tmp_path} {kind}"))

    assert caught.value.code == "filesystem_unsafe"


def test_the_innermost_mount_decides(tmp_path: Path) -> None:
    inner = tmp_path / "shared" / "local disk"
    inner.mkdir(parents=True)
    table = mounts(
        tmp_path,
        f"server:/x {tmp_path}/shared nfs4",
        f"/dev/sdb1 {tmp_path}/shared/local\\040disk xfs",
        f"server:/y {tmp_path}/shared/loc nfs4",
    )

    refuse_network_filesystem(inner / "perdure.db", table)
    with pytest.raises(SettingInvalid):
        refuse_network_filesystem(inner.parent / "perdure.db", table)


def test_a_link_to_a_network_file_system_is_followed(tmp_path: Path) -> None:
    (tmp_path / "share").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "share")

    with pytest.raises(SettingInvalid):
        refuse_network_filesystem(
            tmp_path / "link" / "perdure.db", mounts(tmp_path, f"server:/x {tmp_path}/share nfs4")
        )


def test_a_local_disk_and_a_system_without_a_mount_table_are_fine(tmp_path: Path) -> None:
    refuse_network_filesystem(tmp_path / "perdure.db", mounts(tmp_path))
    refuse_network_filesystem(tmp_path / "perdure.db", tmp_path / "none")

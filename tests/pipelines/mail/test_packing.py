"""A directory of messages is packed into an mbox, and they come out of it as they were."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from perdure.errors import InputInvalid
from perdure.pipelines.mail.archive import open_archive
from perdure.pipelines.mail.packing import is_maildir, pack

HEAD = b"From: ann@example.org\nMessage-ID: <%s@x>\nSubject: so\n\n"
BODIES = {
    "plain": b"words\n",
    "none": b"",
    "open": b"no line end",
    "quoted": b"From now on\n>From then\n>>From \n From here\n",
    "prose": b"\nFrom ann@example.org Mon Nov 16 08:00:00 2026\nSubject: no message\n",
    "windows": b"one\r\n\r\nFrom two\r\n",
    "long": b"x" * (3 << 20) + b"From \n",
}


def test_messages_come_back_as_they_were(tmp_path: Path) -> None:
    for name, body in BODIES.items():
        (tmp_path / f"{name}.eml").write_bytes(HEAD % name.encode() + body)
    packed = io.BytesIO()
    assert pack(tmp_path, packed) == len(BODIES)
    with open_archive(tmp_path) as files, open_archive(packed.getvalue()) as archive:
        there, back = list(files), list(archive)
    assert [entry.identity for entry in back] == [entry.identity for entry in there]
    for before, after in zip(there, back, strict=True):
        assert after.data.rstrip(b"\n") == before.data.rstrip(b"\n")


def test_what_is_no_message_stays_alone(tmp_path: Path) -> None:
    for name, content in {"a": HEAD % b"a" + b"one", "b": b"only words", "c": HEAD % b"c", "d": b""}.items():
        (tmp_path / f"{name}.eml").write_bytes(content)
    packed = io.BytesIO()
    assert pack(tmp_path, packed) == 4
    with open_archive(packed.getvalue()) as archive:
        assert [entry.message_id for entry in archive] == ["a@x", "", "c@x", ""]


def test_a_maildir_is_told_by_its_directories(tmp_path: Path) -> None:
    assert not is_maildir(tmp_path)
    for name in ("cur", "new", "tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "17.x:2,S").write_bytes(HEAD % name.encode())
    assert is_maildir(tmp_path)
    assert pack(tmp_path, io.BytesIO()) == 2  # what is in tmp is not there yet


def test_a_directory_without_messages_says_so(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no mail")
    with pytest.raises(InputInvalid, match="no message in this directory"):
        pack(tmp_path, io.BytesIO())

"""Every message of an archive is listed once, whatever stands around it; nothing else is a message."""

from __future__ import annotations

import mailbox
import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import Permanent, Transient
from perdure.pipelines.mail import mbox
from perdure.pipelines.mail.archive import Archive, Entry, identify, open_archive, read_entry
from tests.pipelines.mail.corpus import Corpus, corpus, quoted

LINE = b"From ada@lists.example Mon Jan  1 08:00:00 2024\n"


def letter(number: int, body: bytes = b"text\n", headers: bytes = b"") -> bytes:
    return (
        b"From: a@x.example\nDate: Mon, 1 Jan 2024 08:00:00 +0000\nMessage-ID: <%d@x.example>\n" % number
        + headers
        + b"\n"
        + body
    )


def boxed(*letters: bytes, line: bytes = LINE) -> bytes:
    return b"".join(line + one + b"\n" for one in letters)


def listed(source: Path | bytes) -> list[Entry]:
    with open_archive(source) as archive:
        return list(archive)


@pytest.fixture(scope="module")
def small() -> Corpus:
    return corpus(400)


def test_every_message_of_the_corpus_is_listed_once(small: Corpus, tmp_path: Path) -> None:
    path = tmp_path / "a.mbox"
    path.write_bytes(small.mbox)
    with open_archive(path) as archive:
        found = list(archive)

    assert [one.message_id for one in found] == [one.message_id for one in small.letters]
    assert [one.data.rstrip() for one in found] == [one.data.rstrip() for one in small.letters]
    assert (archive.duplicates, archive.listed) == (small.duplicates, 400)
    assert sum(one.length for one in found) < len(small.mbox)
    assert [read_entry(path, one.offset, one.length) for one in found] == [one.data for one in found]


def test_a_path_may_be_a_string(tmp_path: Path) -> None:
    path = tmp_path / "a.mbox"
    path.write_bytes(boxed(letter(1)))
    with open_archive(str(path)) as archive:
        (entry,) = archive
    assert read_entry(str(path), entry.offset, entry.length) == entry.data
    with pytest.raises(FileNotFoundError):
        open_archive(str(tmp_path / "missing.mbox"))


def test_it_agrees_with_the_standard_library_where_that_is_right(tmp_path: Path) -> None:
    path = tmp_path / "theirs.mbox"
    box = mailbox.mbox(path)
    for number in range(30):
        box.add(letter(number, b"From the start\n\nFrom here on\n>From quoted\n"))
    box.flush()

    found = listed(path)
    assert [one.message_id for one in found] == [message["message-id"].strip("<>") for message in box]
    assert found[0].data.endswith(b"\n\nFrom the start\n\nFrom here on\nFrom quoted\n")


@pytest.mark.parametrize("size", [1_100, 1_500, 4_096])
def test_where_the_window_ends_makes_no_difference(
    small: Corpus, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = listed(small.mbox)
    monkeypatch.setattr(mbox, "WINDOW_BYTES", size)

    assert listed(small.mbox) == whole


@pytest.mark.parametrize(
    "line",
    [
        b"From - Mon Jan 01 08:00:00 2024",
        b"From 1234567890@xxx Mon Jan 01 08:00:00 +0000 2024",
        b"From ada at lists.example  Mon Jan  1 08:00:00 2024",
        b"From MAILER-DAEMON Mon Jan  1 08:00 2024",
        b"From ada Mon Jan  1 08:00:00 MET DST 2024",
        b"From ada Mon, 1 Jan 2024 08:00:00 +0000",
    ],
)
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_lines_that_begin_a_message(line: bytes, end: bytes) -> None:
    found = listed(boxed(letter(1), letter(2), line=line + b"\n").replace(b"\n", end))

    assert [one.message_id for one in found] == ["1@x.example", "2@x.example"]
    assert identify(found[0].data)[0] == identify(letter(1))[0]


@pytest.mark.parametrize(
    "body",
    [
        b"a line\n" + LINE + b"Subject: no empty line before\n",
        b"a line\n\nFrom here on it is easy\nSubject: no date\n",
        b"a line\n\n" + LINE + b"no header after it\n",
        b"a line\n\nFrom me on Monday at 08:00 in 2024\n",
        b"From the first line on\n",
    ],
)
def test_lines_that_do_not(body: bytes) -> None:
    first, second = listed(boxed(letter(1, body), letter(2)))

    assert first.data == letter(1, body)
    assert second.message_id == "2@x.example"


def test_quoting_is_undone() -> None:
    body = b"From a\n>From b\n>>From c\n> From d\n"
    (found,) = listed(boxed(quoted(letter(1, body))))

    assert found.data == letter(1, body)


def test_a_length_is_believed_if_it_is_exact() -> None:
    body = b"one\n\n" + boxed(letter(9)) + b"two\n"
    exact = letter(1, body, b"Content-Length: %d\n" % len(body))
    wrong = letter(1, body, b"Content-Length: %d\n" % (len(body) - 3))

    assert [one.message_id for one in listed(boxed(exact, letter(2)))] == ["1@x.example", "2@x.example"]
    assert listed(boxed(exact))[0].data == exact
    assert [one.message_id for one in listed(boxed(wrong, letter(2)))] == [
        "1@x.example",
        "9@x.example",
        "2@x.example",
    ]


def test_what_stands_before_between_and_after_messages() -> None:
    plain = listed(boxed(letter(1), letter(2)))
    for odd in (
        b"\xef\xbb\xbf" + boxed(letter(1), letter(2)),
        b"\n\n" + boxed(letter(1), letter(2)),
        b"\x00" * 5_000 + boxed(letter(1)) + b"\x00" * 5_000 + boxed(letter(2)),
        boxed(letter(1)) + boxed(letter(2)).rstrip(b"\n"),
        boxed(letter(1)) + b"\n\n" + boxed(letter(2)) + b"\n\n",
    ):
        assert [one.identity for one in listed(odd)] == [one.identity for one in plain]


def test_an_archive_that_was_cut_off_gives_what_is_there() -> None:
    whole = boxed(letter(1), letter(2, b"word " * 100))
    for end in range(len(LINE), len(whole)):
        assert listed(whole[:end])[0].data.startswith(letter(1)[: end - len(LINE)][:50])


def test_an_empty_archive_has_no_messages() -> None:
    assert listed(b"") == listed(b"\n\n") == []


@pytest.mark.parametrize(
    "data", [b"Dear diary,\nFrom now on.\n", b"%PDF-1.7", b"PK\x03\x04", os.urandom(500)]
)
def test_what_is_no_archive_is_refused(data: bytes) -> None:
    with pytest.raises(Permanent) as refused:
        listed(data)
    assert refused.value.code == "type_unsupported"


def test_one_message_that_is_too_large_is_told_and_the_others_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "large.mbox"
    path.write_bytes(boxed(letter(1), letter(2, b"a long line\n" * 100_000), letter(3)))
    with open_archive(path, bytes_max=100_000) as archive:
        found = list(archive)

    assert [(one.message_id, one.problem) for one in found] == [
        ("1@x.example", ""),
        ("", "document_bomb"),
        ("3@x.example", ""),
    ]
    assert (found[1].data, found[1].length > 1_200_000) == (b"", True)


def test_identity() -> None:
    known = identify(letter(1))
    came_otherwise = b"Received: by b\nX-Spam: no\n" + letter(1).replace(b"\n", b"\r\n") + b"\r\n"

    assert identify(came_otherwise) == known
    assert identify(letter(1, b"other\n"))[0] != known[0]
    assert identify(letter(1).replace(b"08:00", b"09:00"))[0] != known[0]
    assert identify(letter(1).replace(b"Message-ID:", b"message-id:\n")) == known
    assert identify(b"Subject: x\n\na")[0] != identify(b"Subject: y\n\na")[0]
    assert identify(b"Message-ID: none\n\na")[1] == ""


def test_two_messages_with_one_id_are_two_and_copies_are_one() -> None:
    with open_archive(boxed(letter(1), letter(1, b"other\n"), letter(1))) as archive:
        found = list(archive)

    assert len({one.identity for one in found}) == len(found) == 2
    assert {one.message_id for one in found} == {"1@x.example"}
    assert archive.duplicates == 1


def _again(path: Path, archive: Archive) -> tuple[list[str], Archive]:
    with open_archive(path, archive.mark) as next_:
        return [one.message_id for one in next_], next_


def test_an_archive_that_grew_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "grows.mbox"
    path.write_bytes(boxed(letter(1), letter(2), letter(3, b"cut o")))
    with open_archive(path) as archive:
        assert len(list(archive)) == 3

    with path.open("ab") as file:
        file.write(b"ff\n\n" + boxed(letter(4)))
    ids, grown = _again(path, archive)
    assert (ids, grown.resumed) == (["3@x.example", "4@x.example"], True)
    ids, same = _again(path, grown)
    assert (ids, same.mark) == (["4@x.example"], grown.mark)

    path.write_bytes(path.read_bytes().replace(b"<2@x.example>", b"<7@x.example>"))
    ids, changed = _again(path, grown)
    assert (ids, changed.resumed) == (["1@x.example", "7@x.example", "3@x.example", "4@x.example"], False)
    path.write_bytes(boxed(letter(1)))
    assert _again(path, grown)[0] == ["1@x.example"]
    path.write_bytes(boxed(letter(1), letter(8, b"longer than all before\n" * 100)))
    ids, other = _again(path, grown)
    assert (ids, other.resumed) == (["1@x.example", "8@x.example"], False)
    ids, other = _again(path, other)
    assert (ids, other.resumed) == (["8@x.example"], True)


def test_a_single_message_and_directories(tmp_path: Path) -> None:
    (tmp_path / "one.eml").write_bytes(letter(1))
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "two.EML").write_bytes(letter(2))
    (tmp_path / "deep" / "copy.eml").write_bytes(letter(1) + b"\n")
    (tmp_path / "notes.txt").write_text("no message")
    (tmp_path / "link.eml").symlink_to(tmp_path / "notes.txt")
    os.mkfifo(tmp_path / "pipe.eml")

    assert [one.message_id for one in listed(tmp_path / "one.eml")] == ["1@x.example"]
    with open_archive(tmp_path) as archive:
        found = list(archive)
    assert {(one.message_id, one.name) for one in found} == {
        ("1@x.example", "deep/copy.eml"),
        ("2@x.example", "deep/two.EML"),
    }
    assert (archive.duplicates, archive.mark) == (1, None)
    assert read_entry(tmp_path, 0, found[0].length, found[0].name) == found[0].data


def test_a_maildir(tmp_path: Path) -> None:
    box = mailbox.Maildir(tmp_path / "mail")
    for number in range(5):
        box.add(letter(number))
    box.add_folder("Sent").add(letter(9))
    (tmp_path / "mail" / "tmp" / "half").write_bytes(b"half a mess")
    before = listed(tmp_path / "mail")
    for key in list(box.keys())[:2]:
        read = mailbox.MaildirMessage(box[key])
        read.set_subdir("cur")
        read.add_flag("S")
        box[key] = read

    assert {one.message_id for one in before} == {f"{n}@x.example" for n in (0, 1, 2, 3, 4, 9)}
    assert {one.identity for one in listed(tmp_path / "mail")} == {one.identity for one in before}


def test_an_archive_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "shrinks.mbox"
    path.write_bytes(boxed(*(letter(n, b"a line\n" * 1_000) for n in range(300))))
    with open_archive(path) as archive:
        entries = iter(archive)
        last = next(entries)
        os.truncate(path, 5_000)
        with pytest.raises(Transient) as told:
            list(entries)
    assert told.value.code == "archive_changed"
    with pytest.raises(Transient):
        read_entry(path, last.offset + 4_000, last.length)


@given(
    st.lists(
        st.binary(max_size=60) | st.sampled_from([LINE, b"\n", b"From ", b"\n\n", b"Subject: x\n", b"\x00"])
    )
)
def test_whatever_follows_a_first_line_the_spans_cover_it(pieces: list[bytes]) -> None:
    data = boxed(letter(1)) + b"".join(pieces)
    spans = list(mbox.spans(mbox.Memory(data), 0))

    assert spans[0][0] == 0
    assert spans[-1][1] == len(data)
    assert all(end == begin for (_, end), (begin, _) in pairwise(spans))
    assert len(listed(data)) >= 1

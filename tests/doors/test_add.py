"""`perdure add`: what a user types, and what becomes of it."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from perdure.app import Perdure
from perdure.cli.add import Answers, Asked, add_all, things
from perdure.cli.sources import PIECE_BYTES, found, spooled
from perdure.cli.stop import Stop
from perdure.errors import InputInvalid
from perdure.pipelines.document import documents
from perdure.pipelines.image.pipeline import images
from perdure.pipelines.mail.pipeline import mails
from perdure.testing import drain, trial
from tests.doors.command import COMMAND, complaints, environment, perdure, refused, succeeded
from tests.pipelines.image.making import corners, stored
from tests.pipelines.mail.boxes import letter, mbox

PAGE = (
    b"<!doctype html><html><body><h1>On queues</h1><p>A page of a few words about queues.</p></body></html>"
)


def test_a_dead_file_that_is_added_again_starts_again(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"PK\x05\x06" + bytes(18))
    (tmp_path / "b.txt").write_text("A note about queues.")
    store = f"sqlite:///{tmp_path}/p.db"
    given = ("add", "a.zip", "b.txt", "--store", store)
    ids = [line.split()[1] for line in succeeded(*given, cwd=tmp_path).splitlines()]
    with trial([documents, images, mails], store=store) as app:
        assert drain(app).dead == 1

    again = succeeded(*given, cwd=tmp_path).splitlines()
    assert again == [f"requeued {ids[0]}  a.zip", f"exists  {ids[1]}  b.txt (done)"]
    told = [json.loads(line) for line in succeeded(*given, "--json", cwd=tmp_path).splitlines()]
    assert [(one["answer"], one["state"]) for one in told] == [("exists", "queued"), ("exists", "done")]
    with trial([documents, images, mails], store=store) as app:
        assert drain(app).dead == 1
        assert app.status(ids[0]).generation == 2


def test_nul_in_a_text_is_refused(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/p.db"
    with trial([documents], store=store) as app, pytest.raises(InputInvalid, match="NUL") as refused:
        app.add(text="a\0b", pipeline=documents)
    assert refused.value.code == "text_nul"


def test_files_directories_and_urls_become_documents(tmp_path: Path) -> None:
    notes = tmp_path / "notes" / "deep"
    notes.mkdir(parents=True)
    (notes / "a.md").write_text("# One\n\nThe first note.")
    (notes / ".hidden").write_text("nobody's business")
    (tmp_path / "b.txt").write_text("The second note.")
    store = f"sqlite:///{tmp_path}/p.db"

    said = succeeded(
        "add", "notes", "b.txt", "https://example.com/x", "--store", store, cwd=tmp_path
    ).splitlines()

    assert [line.split()[0] for line in said] == ["added"] * 3
    assert [line.split()[2] for line in said] == ["notes/deep/a.md", "b.txt", "https://example.com/x"]
    again = succeeded("add", "b.txt", "--store", store, cwd=tmp_path)
    assert again.split()[:2] == ["exists", said[1].split()[1]]
    with trial(documents, store=store) as app:
        app.cancel(said[2].split()[1])
        assert drain(app).done == 2
        assert app.output(said[0].split()[1], "extract").summary.title == "One"


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_secrets_in_an_address_are_not_printed(tmp_path: Path, more: tuple[str, ...]) -> None:
    address = "http://user:SECRET 'PW@127.0.0.1:8098/x?token=SECRET2"

    ended = perdure("add", address, *more, "--store", f"sqlite:///{tmp_path}/p.db", cwd=tmp_path)

    said = ended.stdout + ended.stderr
    assert ended.returncode == 2
    assert "user:***@127.0.0.1:8098/x?token=***" in said
    assert "SECRET" not in said
    assert "PW" not in said


def test_an_at_sign_in_the_path_of_an_address_is_shown() -> None:
    assert [one.source for one in found(["https://example.com/@name/x"])] == ["https://example.com/@name/x"]


def test_what_is_refused_keeps_no_other_from_being_added(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("well")
    store = f"sqlite:///{tmp_path}/p.db"

    ended = perdure("add", "missing.pdf", "http://127.0.0.1/", "a.txt", "--store", store, cwd=tmp_path)

    assert ended.returncode == 2
    assert [line.rpartition("[")[2] for line in complaints(ended.stderr)] == [
        "file_missing]",
        "address_forbidden]",
        "perdure: 1 added, 2 refused",
    ]
    assert ended.stdout.startswith("added ")


def test_standard_input_is_a_document(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/p.db"
    ended = subprocess.run(
        [*COMMAND, "add", "-", "--store", store], input=b"from a pipe", capture_output=True, env=environment(),
        check=True,
    )  # fmt: skip
    id_ = ended.stdout.split()[1].decode()
    with trial(documents, store=store) as app:
        assert drain(app).done == 1
        assert "from a pipe" in app.output(id_, "extract").markdown


def test_a_directory_that_holds_the_store_is_added_without_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("well")
    store = f"sqlite:///{tmp_path}/p.db"
    succeeded("migrate", "--store", store)

    assert succeeded("add", ".", "--store", store, cwd=tmp_path).split()[2:] == ["a.txt"]


def test_what_it_is_is_told_from_its_content_and_not_from_its_name(store_url: str, tmp_path: Path) -> None:
    (tmp_path / "page.pdf").write_bytes(PAGE)
    (tmp_path / "paper.txt").write_bytes(_pdf("On leases"))
    (tmp_path / "mail").write_bytes(_pdf("On tokens"))
    said = succeeded("add", "page.pdf", "paper.txt", "--store", store_url, cwd=tmp_path)
    with (tmp_path / "mail").open("rb") as stream:
        said += subprocess.run(
            [*COMMAND, "add", "-", "--store", store_url], stdin=stream, capture_output=True, text=True,
            env=environment(), check=True,
        ).stdout  # fmt: skip

    with trial(documents, store=store_url) as app:
        assert drain(app).done == 3
        texts = [app.output(line.split()[1], "extract").markdown for line in said.splitlines()]
    assert ["On queues" in texts[0], "On leases" in texts[1], "On tokens" in texts[2]] == [True] * 3


def test_the_pipeline_is_chosen_by_content(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/p.db"
    files = {
        "mail.txt": mbox(letter("ada")),
        "one.eml": letter("ada"),
        "photo": stored(corners()),
        "a.md": b"# A",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    succeeded("add", *files, "--text", "well", "--store", store, cwd=tmp_path)
    with trial([documents, images, mails], store=store) as app:
        found = {one.name: (one.pipeline, one.collection) for one in app.documents()}
    assert found == {
        "mail.txt": ("mail", "archives"), "one.eml": ("mail", "archives"), "photo": ("image", "images"),
        "a.md": ("document", "documents"), "": ("document", "documents"),
    }  # fmt: skip


def test_a_directory_of_mail_is_one_archive(tmp_path: Path) -> None:
    store, mail = f"sqlite:///{tmp_path}/p.db", tmp_path / "mail"
    for name in ("cur", "new"):
        (mail / name).mkdir(parents=True)
    (mail / "cur" / "1:2,S").write_bytes(letter("ada"))
    added = succeeded("add", "mail", "--store", store, cwd=tmp_path).split()
    assert (added[0], added[2:]) == ("added", ["mail"])
    assert succeeded("add", "mail", "--store", store, cwd=tmp_path).split()[:2] == ["unchanged", added[1]]
    (mail / "new" / "0").write_bytes(letter("bob"))
    assert succeeded("add", "mail", "--store", store, cwd=tmp_path).split()[1] == added[1]
    with trial([mails, documents, images], store=store) as app:
        drain(app)
        ((_, account),) = app.rows(added[1], "archive")
        assert (account["messages"], app.status(added[1]).collection) == (2, "archives")
    (tmp_path / "empty").mkdir()
    asked = ("add", "empty", "--pipeline", "mail", "--store", store)
    assert "there is no message in this directory" in refused(2, "file_missing", *asked, cwd=tmp_path)


def test_the_path_of_an_mbox_is_its_key_and_standard_input_has_none(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/p.db"
    box, inside = tmp_path / "list.mbox", tmp_path / "inside"
    inside.mkdir()
    box.write_bytes(mbox(letter("ada")))
    added = succeeded("add", "list.mbox", "--store", store, cwd=tmp_path).split()
    assert succeeded("add", "../list.mbox", "--store", store, cwd=inside).split()[:2] == [
        "unchanged",
        added[1],
    ]
    box.write_bytes(mbox(letter("ada"), letter("bob")))
    assert succeeded("add", str(box), "--store", store).split()[:2] == ["refreshed", added[1]]
    piped = subprocess.run(
        [*COMMAND, "add", "-", "--store", store], input=box.read_bytes(), capture_output=True, env=environment(),
        check=True,
    )  # fmt: skip
    assert piped.stdout.split()[0] == b"added"


def test_what_is_no_document_is_refused_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    os.mkfifo(place / "a-pipe")
    (place / "b-link").symlink_to("nowhere")
    (place / "c-empty").touch()
    (place / "d-good").write_text("well")
    (place / "e-loop").symlink_to("e-loop")
    (place / "f-again").symlink_to(".")
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(place)  # the whole path may be too long for a socket
        listener.bind("g-socket")
        ended = perdure(
            "add", "place", "/dev/zero", "/proc/self/mem", "n" * 300, "hollow", "--json", "--store",
            f"sqlite:///{tmp_path}/p.db", cwd=tmp_path,
        )  # fmt: skip

    assert ended.returncode == 2
    said = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [(one["source"].rpartition("/")[2][:8], one["code"] or one["answer"]) for one in said] == [
        ("a-pipe", "file_special"), ("b-link", "file_missing"), ("c-empty", "document_empty"), ("d-good", "added"),
        ("e-loop", "file_unreadable"), ("g-socket", "file_special"), ("zero", "file_special"),
        ("mem", "file_unreadable"), ("n" * 8, "file_unreadable"), ("hollow", "file_missing"),
    ]  # fmt: skip
    assert complaints(ended.stderr) == ["perdure: 1 added, 9 refused"]


def test_a_directory_without_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "void" / "deep").mkdir(parents=True)
    refused(2, "file_missing", "add", "void", cwd=tmp_path)


def test_names_of_any_bytes_are_taken_in_and_shown_on_one_line(tmp_path: Path) -> None:
    place, store = tmp_path / "place", f"sqlite:///{tmp_path}/p.db"
    place.mkdir()
    for number, name in enumerate((b"na\xefve.txt", b"two\nlines.txt", b"n" * 255)):
        Path(os.fsdecode(os.fsencode(place) + b"/" + name)).write_text(f"text {number}")

    said = succeeded("add", "place", "--store", store, cwd=tmp_path).splitlines()

    assert [line.split("/", 1)[1] for line in said] == ["na\ufffdve.txt", "n" * 255, "two\ufffdlines.txt"]
    with trial(documents, store=store) as app:
        names = [app.status(line.split()[1]).name for line in said]
    assert names == ["na\ufffdve.txt", "n" * 255, "two\nlines.txt"]


def test_the_same_content_is_the_same_document_within_an_organisation(store_url: str, tmp_path: Path) -> None:
    for name in ("a.txt", "b.md"):
        (tmp_path / name).write_text("the same")
    first, second = succeeded("add", "a.txt", "b.md", "--store", store_url, cwd=tmp_path).splitlines()
    assert (first.split()[0], second.split()[:2]) == ("added", ["exists", first.split()[1]])
    other = succeeded("add", "a.txt", "--org", "other", "--store", store_url, cwd=tmp_path)
    assert other.split()[0] == "added"


def test_a_text_and_a_name(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/p.db"
    said = json.loads(succeeded("add", "--text", "# A note", "--name", "note", "--json", "--store", store))
    assert (said["answer"], said["source"]) == ("added", "--text")
    with trial(documents, store=store) as app:
        assert app.status(said["id"]).name == "note"
    refused(2, "document_empty", "add", "--text", " ", "--store", store)
    refused(2, "input_invalid", "add", "a", "b", "--name", "c", "--store", store)
    refused(2, "input_invalid", "add", "--store", store)


def test_what_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/p.db"
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)  # nobody could read it in the time
    refused(2, "input_too_large", "add", "large", "--store", store, cwd=tmp_path)


class Endless(io.RawIOBase):
    """A stream without an end that counts what was read of it."""

    count = 0

    def read(self, size: int = -1) -> bytes:
        assert 0 < size <= PIECE_BYTES
        self.count += size
        return b"x" * size


@pytest.mark.parametrize("bytes_max", [10, 3 * PIECE_BYTES])
def test_of_standard_input_no_more_is_read_than_is_allowed(tmp_path: Path, bytes_max: int) -> None:
    stream = Endless()
    assert spooled(stream, tmp_path, bytes_max).code == "input_too_large"  # type: ignore[arg-type]
    assert stream.count == bytes_max + 1


def test_many_files_share_a_transaction_and_each_has_its_answer(
    store_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    for number in range(600):
        (place / f"{number:03}.txt").write_text(f"text {number if number % 100 else 0}")
    (place / "300.txt").write_text("")
    asked, answers = Asked("document", [str(place)], {"org": "default"}), Answers()

    async def run() -> tuple[int, int]:
        async with Perdure(store_url, pipelines=[documents]) as app:
            before = app.store.flusher.flushes
            await add_all(app, asked, things(app, asked, tmp_path), answers, Stop())
            return app.store.flusher.flushes - before, sum((await app.store.live()).values())

    transactions, documents_there = asyncio.run(run())
    assert transactions <= 6
    assert documents_there == 595
    assert answers.counts == {"added": 595, "exists": 4, "refused": 1}
    lines = capsys.readouterr().out.splitlines()
    names = [line.rpartition("/")[2] for line in lines]
    assert [name.removesuffix(" (queued)") for name in names] == [
        f"{n:03}.txt" for n in range(600) if n != 300
    ]
    assert sum(name.endswith(" (queued)") for name in names) == 4  # those that exist


def test_nothing_is_listed_twice_and_hidden_files_are_left(tmp_path: Path) -> None:
    for name in ("b/x", "b/c/y", "a/z", "w", ".git/config", "b/.swp"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    listed = [os.path.relpath(one.source, tmp_path) for one in found([str(tmp_path)])]
    assert listed == ["w", "a/z", "b/x", "b/c/y"]


@pytest.mark.full
def test_ctrl_c_tells_what_was_added(tmp_path: Path) -> None:
    place, store = tmp_path / "place", f"sqlite:///{tmp_path}/p.db"
    place.mkdir()
    for number in range(4_000):  # more answers than a pipe holds: it cannot be through before we read them
        (place / f"{number}.txt").write_text(f"text {number}")
    process = subprocess.Popen(
        [*COMMAND, "add", "place", "--store", store], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, bufsize=0,
    )  # fmt: skip
    assert process.stdout is not None
    first = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=90)

    assert process.returncode == 130
    told = [first, *rest.splitlines()]
    assert complaints(errors.decode()) == [f"perdure: stopped: {len(told):,} added"]
    assert len(told) < 4_000
    with trial(documents, store=store) as app:
        assert sum(app._call(app.service.store.live()).values()) == len(told)


@pytest.mark.full
def test_who_stops_reading_stops_it(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    for number in range(2_000):
        (place / f"{number}.txt").write_text(f"text {number}")
    process = subprocess.Popen(
        [*COMMAND, "add", "place", "--store", f"sqlite:///{tmp_path}/p.db"], cwd=tmp_path, env=environment(),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait(90) == 130
    assert "nobody reads" in errors
    assert "Traceback" not in errors


def _pdf(text: str) -> bytes:
    """A PDF of one page with this line."""
    content = f"BT /F1 24 Tf 72 700 Td ({text} and other things of some length) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        b"/Resources << /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> >>",
        b"<< /Length %d >> stream\n%s\nendstream" % (len(content), content),
    ]
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj %s endobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    return out + (
        b"xref\n0 5\n0000000000 65535 f \n%strailer << /Size 5 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF"
        % (table, len(out))
    )


def test_of_two_equal_files_the_first_is_added(tmp_path: Path) -> None:
    """However large, and whatever is read beside them."""
    for n in range(8):
        (tmp_path / f"{n}.txt").write_bytes(b"word " * 400_000)
    store = f"sqlite:///{tmp_path}/p.db"
    said = succeeded("add", *(f"{n}.txt" for n in range(8)), "--store", store, cwd=tmp_path).splitlines()
    assert [line.split()[0] for line in said] == ["added"] + ["exists"] * 7


def test_the_only_pipeline_of_an_app_need_not_be_named(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from perdure import Document, Perdure, Pipeline\n"
        "books = Pipeline('books')\n"
        "@books.stage\n"
        "def read(doc: Document) -> int:\n"
        "    return 1\n"
        "app = Perdure(pipelines=[books])\n"
    )
    on = ("--app", "mine:app", "--store", f"sqlite:///{tmp_path}/p.db")
    succeeded("add", "--text", "a", *on, cwd=tmp_path)
    rerun = succeeded("rerun", "--from", "read", "--where", "state=done", *on, cwd=tmp_path)
    assert rerun.startswith("0 found")


def test_a_file_that_is_not_there_creates_no_store(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/new/perdure.db"
    assert "there is no such file" in refused(
        2, "file_missing", "add", "missing.pdf", "--store", store, cwd=tmp_path
    )
    ended = perdure("add", "missing.pdf", "gone.txt", "--store", store, cwd=tmp_path)
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (2, "perdure: 2 refused")
    assert list(tmp_path.iterdir()) == []

"""Pictures of text with a few words on them, and files of a portfolio that are such pictures: read, or marked."""

from __future__ import annotations

import io
from pathlib import Path

import pikepdf
import pytest
from pikepdf import Array, Dictionary, Name
from PIL import Image

from perdure.pipelines.document import documents
from perdure.pipelines.extract import Part, extract, summarise
from perdure.testing import drain, trial
from tests.pipelines.extract import made
from tests.pipelines.extract.test_ocr import scanned_pdf
from tests.pipelines.extract.test_partial import portfolio, saved

LETTER = "Dear reader this letter was scanned and nobody typed it again " * 4


def stamped(text: str, *, size: tuple[int, int] = (612, 792), nested: bool = False) -> bytes:
    """A page with a picture of this size on it, and some text."""
    with pikepdf.open(io.BytesIO(made.pdf([text]))) as opened:
        picture = opened.make_stream(
            Image.new("L", (60, 80), 200).tobytes(), Type=Name.XObject, Subtype=Name.Image, Width=60, Height=80,
            ColorSpace=Name.DeviceGray, BitsPerComponent=8,
        )  # fmt: skip
        shown = b"q %d 0 0 %d 0 0 cm /Im Do Q" % size
        if nested:
            picture = opened.make_stream(
                b"q 10 0 0 10 0 0 cm /Im Do Q", Type=Name.XObject, Subtype=Name.Form, BBox=Array([0, 0, 10, 10]),
                Resources=Dictionary(XObject=Dictionary(Im=picture)),
            )  # fmt: skip
            shown = b"q %f 0 0 %f 0 0 cm /Im Do Q" % (size[0] / 10, size[1] / 10)
        page = opened.pages[0]
        page.Resources.XObject = Dictionary(Im=picture)
        page.contents_add(opened.make_stream(shown), prepend=True)
        return saved(opened)


def tesseract(folder: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> Path:
    """A program that reads this from every page, and a file with a line for each call."""
    program, calls = folder / "tesseract", folder / "calls"
    program.write_text(f"#!/bin/sh\ncat >/dev/null\necho x >>{calls}\n{answer}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return calls


def page_of(content: bytes) -> Part:
    (part,) = extract(content)
    return part


@pytest.mark.parametrize("nested", [False, True])
def test_a_stamp_on_a_scanned_page_does_not_hide_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nested: bool
) -> None:
    content = stamped("Received 12 May", nested=nested)
    monkeypatch.setenv("PATH", str(tmp_path))
    part = page_of(content)
    assert (part.text, part.scanned) == ("Received 12 May", True)
    assert "1 of 1 pages" in summarise([part]).partial
    tesseract(tmp_path, monkeypatch, f"echo {LETTER}")
    part = page_of(content)
    assert "nobody typed it" in part.text
    assert "Received 12 May" in part.text
    assert not part.scanned


def test_other_pages_with_pictures_are_left_as_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = tesseract(tmp_path, monkeypatch, "echo x1 ~ ii")
    assert page_of(stamped("A logo beside it", size=(200, 100))).text == "A logo beside it"
    assert page_of(stamped("A logo beside it", size=(200, 100), nested=True)).text == "A logo beside it"
    assert page_of(stamped(made.prose(40))).text.count(" ") > 20
    assert not calls.exists()
    assert page_of(stamped("A photograph")).text == "A photograph"
    assert calls.read_text() == "x\n"


def test_a_failing_program_costs_a_stamped_page_nothing_but_a_mark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tesseract(tmp_path, monkeypatch, "exit 3")
    part = page_of(stamped("Received 12 May"))
    assert part.text == "Received 12 May"
    assert summarise([part]).partial


def test_a_book_of_photographs_is_not_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = tesseract(tmp_path, monkeypatch, "echo x1")
    with pikepdf.open(io.BytesIO(stamped("A photograph"))) as opened:
        opened.pages.extend([opened.pages[0]] * 39)
        parts = list(extract(saved(opened)))
    assert [part.text for part in parts] == ["A photograph"] * 40
    assert len(calls.read_text().split()) == 20


def test_scanned_files_of_a_portfolio_are_marked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    content = portfolio({f"{n}.pdf": scanned_pdf(f"Letter {n}") for n in range(3)})
    monkeypatch.setenv("PATH", str(tmp_path))
    parts = list(extract(content))
    assert "not read: ocr_needed" in parts[1].text
    assert [part.scanned for part in parts] == [False, True, True, True]
    assert "words of the source" in summarise(parts).partial


def test_scanned_pages_within_a_file_of_a_portfolio_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        pikepdf.open(io.BytesIO(made.pdf(["A cover."]))) as opened,
        pikepdf.open(io.BytesIO(scanned_pdf("Letter"))) as scan,
    ):
        opened.pages.extend(scan.pages)
        parts = list(extract(portfolio({"inner.pdf": saved(opened)})))
    assert parts[1].missed >= 100
    assert parts[1].scanned


def test_a_requeue_reads_the_files_of_a_portfolio(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store_url: str
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with trial(documents, store=store_url) as app:
        content = portfolio({"a.pdf": scanned_pdf("Letter")})
        id_ = app.add(data=content, name="all.pdf", pipeline=documents).id
        drain(app)
        assert (app.status(id_).state, app.status(id_).degraded) == ("done", True)
        tesseract(tmp_path, monkeypatch, f"echo {LETTER}")
        app.requeue(id_)
        drain(app)
        assert (app.status(id_).state, app.status(id_).degraded) == ("done", False)
        assert [hit.document_id for hit in app.search("nobody typed it")] == [id_]

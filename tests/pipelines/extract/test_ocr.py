"""Scanned pages: read where tesseract is installed, told where it is not."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image, ImageDraw, ImageFont

from perdure.errors import Permanent
from perdure.pipelines.document import documents
from perdure.pipelines.extract import extract, open_reader, summarise
from perdure.testing import drain, trial
from tests.pipelines.extract.shelf import Shelf


def scanned_pdf(text: str) -> bytes:
    """A page that is a picture of a text, written by Pillow."""
    picture = Image.new("L", (1240, 600), 255)
    ImageDraw.Draw(picture).text((80, 200), text, fill=0, font=ImageFont.load_default(48))
    out = io.BytesIO()
    picture.save(out, "PDF", resolution=150)
    return out.getvalue()


def test_a_scanned_page_is_read(shelf: Shelf) -> None:
    (part,) = extract(scanned_pdf("The quick brown fox"))
    assert part.text.strip() == "The quick brown fox"
    assert not part.scanned


def test_a_scanned_page_is_told_where_nothing_can_read_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    parts = list(extract(scanned_pdf("The quick brown fox")))
    assert [(part.text, part.scanned) for part in parts] == [("", True)]
    with pytest.raises(Permanent) as needed:
        summarise(parts)
    assert needed.value.code == "ocr_needed"
    assert "tesseract" in str(needed.value)


def test_pictures_can_be_left_alone(shelf: Shelf) -> None:
    with open_reader(scanned_pdf("The quick brown fox"), pictures=False) as reader:
        assert reader.read(1).scanned


def test_a_requeue_reads_the_pages_once_tesseract_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store_url: str
) -> None:
    """Pages that were saved as pictures are read again, the others are not."""
    monkeypatch.setenv("PATH", "/nowhere")
    with trial(documents, store=store_url) as app:
        id_ = app.add(data=scanned_pdf("The quick brown fox"), name="scan.pdf", pipeline=documents).id
        drain(app)
        assert app.status(id_).error_code == "ocr_needed"
        program = tmp_path / "tesseract"
        program.write_text("#!/bin/sh\ncat >/dev/null\necho The quick brown fox\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        app.requeue(id_)
        drain(app)
        assert app.status(id_).state == "done"
        assert [hit.document_id for hit in app.search("quick brown fox")] == [id_]

"""Scanned pages: read where tesseract is installed, told where it is not."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image, ImageDraw, ImageFont

from perdure.errors import Permanent
from perdure.pipelines.extract import extract, open_reader, summarise
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

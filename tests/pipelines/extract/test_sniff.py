"""What a document is, by its content."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from perdure.pipelines.extract import sniff, sniff_file
from perdure.pipelines.image.opening import MEDIA_TYPES
from tests.pipelines.extract import hostile, made
from tests.pipelines.extract.shelf import EPUBS, PDFS, RST, Shelf

DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
XLSX = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
MAIL = b"Return-Path: <a@example.org>\r\nFrom: A <a@example.org>\r\nSubject: Hi\r\n\r\nText\r\n"
MBOX = b"From a@example.org Mon Nov 16 03:00:00 2026\nFrom: a@example.org\nSubject: Hi\n\nText\n"
OFFICE = [("[Content_Types].xml", b"<Types/>"), ("docProps/app.xml", b"x" * 100_000)]


@pytest.mark.parametrize(
    ("head", "name", "declared", "kind"),
    [
        (b"%PDF-1.4\n", "a.txt", "text/plain", "application/pdf"),
        (b"\xef\xbb\xbf%PDF-1.4\n", "", "", "application/pdf"),
        (b"\r\n\r\n%PDF-1.4\n", "", "", "application/pdf"),
        (b"<html>%PDF-1.4\n", "a.pdf", "application/pdf", "application/octet-stream"),
        (hostile.epub([b"x"]), "a.zip", "application/zip", "application/epub+zip"),
        (hostile.docx(b""), "a.zip", "", DOCX),
        (hostile.zipped([*OFFICE, ("xl/workbook.xml", b"")]), "a.docx", DOCX, XLSX),
        (hostile.zipped([("word/document.xml", b"")]), "a.docx", DOCX, "application/zip"),
        (b"PK\x05\x06" + bytes(18), "", "", "application/zip"),
        (b"\x1f\x8b\x08\x00", "a.txt", "text/plain", "application/gzip"),
        (b"<!DOCTYPE html><p>x", "a.txt", "text/plain", "text/html"),
        (b"\xef\xbb\xbf \n<!-- c --><HTML lang=en>", "", "", "text/html"),
        (b'<?xml version="1.0"?><!DOCTYPE html PUBLIC "x"><html/>', "", "", "text/html"),
        ("<html><p>wide".encode("utf-16"), "", "", "text/html"),
        ("<html><p>wide and so on".encode("utf-16-le"), "", "", "text/html"),
        (b"<p>a <b>fragment</b></p>", "", "", "text/html"),
        (b"<p>a <b>fragment</b></p>", "", "text/plain", "text/plain"),
        (b"text, then <b>", "a.html", "", "text/plain"),
        (b"text, then <a href='x'>y</a>", "a.html", "", "text/html"),
        (b'<?xml version="1.0"?><feed/>', "a.html", "", "application/xml"),
        (b"# A heading", "a.md", "", "text/markdown"),
        (b"# A heading", "a.md", "text/plain", "text/markdown"),
        (b"# A heading", "", "text/markdown; charset=utf-8", "text/markdown"),
        (b"# A heading", "a.pdf", "application/pdf", "text/plain"),
        (b"a < b and b > c", "", "", "text/plain"),
        ("Grüße".encode("latin-1") * 20, "", "", "text/plain"),
        ("Grüße, alle zusammen".encode("utf-16-be"), "", "", "text/plain"),
        (b"one\x00two", "", "", "text/plain"),
        (b"key: value\nother: value\n", "a.yaml", "", "text/plain"),
        (MAIL, "a.txt", "", "message/rfc822"),
        (MBOX, "a.txt", "", "application/mbox"),
        (b"From here on it is text.\n", "", "", "text/plain"),
        (b"\x7fELF\x02\x01\x01", "a.txt", "text/plain", "application/x-elf"),
        (bytes(range(256)), "a.txt", "text/plain", "application/octet-stream"),
        (b"\x00\x00\x00\x1cftypheic\x00\x00\x00\x00", "", "", "image/heic"),
        (b"II+\x00\x08\x00\x00\x00" + bytes(8), "a.tif", "", "image/tiff"),
        (b"MM\x00+\x00\x08\x00\x00" + bytes(8), "a.tif", "", "image/tiff"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a.doc", "", "application/x-ole-storage"),
        (b"", "a.pdf", "application/pdf", "text/plain"),
    ],
)  # fmt: skip
def test_content_decides(head: bytes, name: str, declared: str, kind: str) -> None:
    assert sniff(head, name, declared) == kind


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "WEBP", "TIFF", "AVIF", "BMP", "JPEG2000", "PPM"])
def test_images(form: str) -> None:
    out = io.BytesIO()
    Image.new("RGB", (20, 20)).save(out, form)
    assert sniff(out.getvalue(), "a.html", "text/html") == MEDIA_TYPES[form]


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"P1\n# made by hand\n2 2\n0 1\n1 0\n", "image/x-portable-anymap"),
        (b"P7\nWIDTH 4\nHEIGHT 4\nDEPTH 1\nMAXVAL 255\nENDHDR\n" + bytes(16), "image/x-portable-anymap"),
        (b"P2 is the name of a program.", "text/plain"),
        (b"BM is the abbreviation of a museum, which is open on Sundays.", "text/plain"),
        (struct.pack("<2000h", *(n % 90 for n in range(2_000))), "application/octet-stream"),
        (
            b"name".ljust(257, b"\0") + b"ustar\x0000" + b"a text in an archive\n" * 500,
            "application/octet-stream",
        ),
        (b"".join(b"%04d\0\1\2 a record\n" % n for n in range(900)), "application/octet-stream"),
        (
            b"!<arch>\ndebian-binary   1676000000  0     0     100644  4         `\n2.0\n",
            "application/x-archive",
        ),
        (b"Grape: one\nSubject: two\n", "text/plain"),
    ],
)
def test_plain_pictures_and_binaries_are_not_text(content: bytes, kind: str) -> None:
    assert sniff(content) == kind


@pytest.mark.parametrize(
    "content",
    [
        b"Subject: Hello\nDate: Mon, 1 Jan 2024 08:00:00 +0000\n\nText\n",
        b"\r\nFrom: a@example.org\r\nSubject: Hi\r\n\r\nText\r\n",
        b"".join(b"X-Filter-%d: passed\n" % n for n in range(60)) + MAIL.replace(b"\r", b""),
    ],
    ids=["few headers", "an empty line first", "many own headers"],
)
def test_a_file_named_eml_is_mail_by_its_headers(content: bytes) -> None:
    assert sniff(content, "letter.eml") == "message/rfc822"
    assert sniff(b"Just a text\nof two lines.\n", "letter.eml") == "text/plain"


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (made.long_pdf(4), "application/pdf"),
        (made.long_pdf(4, streams=False), "application/pdf"),
        (made.detailed_epub(), "application/epub+zip"),
        (made.detailed_docx(), DOCX),
        (made.page("A page", {"One": made.prose(900)}), "text/html"),
    ],
    ids=["pdf", "pdf without object streams", "epub", "docx", "html"],
)
def test_made_files(content: bytes, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "any"
    path.write_bytes(content)
    assert sniff_file(path) == kind


def test_real_files(shelf: Shelf) -> None:
    assert sniff_file(shelf.plain(PDFS["refcard"])) == "application/pdf"
    assert sniff_file(Path(EPUBS["policy"])) == "application/epub+zip"
    assert sniff_file(shelf.pandoc([Path(RST) / "l10n.rst.txt"], "l10n.docx", "--from=rst")) == DOCX
    assert (
        sniff_file(shelf.pandoc([Path(RST) / "l10n.rst.txt"], "l10n.html", "--from=rst", "-s")) == "text/html"
    )


def test_an_archive_whose_head_does_not_tell(tmp_path: Path) -> None:
    path = tmp_path / "late"
    path.write_bytes(hostile.zipped([*OFFICE, ("word/document.xml", b"")], method=0))
    assert sniff(path.read_bytes()[:4096]) == "application/zip"
    assert sniff_file(path) == DOCX


@pytest.mark.parametrize("members", [5_000, 300_000])
def test_an_archive_is_asked_for_few_members(
    members: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server asks, in its event loop: a list of a million members held it for seconds."""
    opened: list[object] = []
    read = zipfile.ZipFile._RealGetContents  # type: ignore[attr-defined]

    def noted(archive: zipfile.ZipFile) -> None:
        opened.append(archive)
        read(archive)

    monkeypatch.setattr(zipfile.ZipFile, "_RealGetContents", noted)
    entry = struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", 20, 0, 20, *[0] * 8, 1, *[0] * 6) + b"a"
    directory = entry * members
    end = struct.pack(
        "<4s4H2LH", b"PK\5\6", 0, 0, members % 65536, members % 65536, len(directory), 70_000, 0
    )
    path = tmp_path / "a.zip"
    path.write_bytes(b"PK\3\4" + bytes(69_996) + directory + end)
    assert sniff_file(path) == "application/zip"
    assert bool(opened) == (members == 5_000)

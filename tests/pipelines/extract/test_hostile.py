"""Documents made to do harm: each gets its code, in a cell, within its time and memory; the neighbours never notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from perdure.engine.isolate import CellCrashed
from perdure.errors import Permanent
from perdure.pipelines.extract import caps, extract, join
from perdure.pipelines.extract.part import sections
from tests.pipelines.extract import hostile, made
from tests.pipelines.extract.damage import assert_no_flip_unseen
from tests.pipelines.extract.hostile import MIB, chapter, docx, epub, paragraph
from tests.pipelines.extract.reading import LIMITS, Cells


def deep(levels: int) -> bytes:
    return b"<div>" * levels + b"deep" + b"</div>" * levels


REFUSED: dict[str, tuple[str, Callable[[], bytes]]] = {
    "empty": ("document_empty", lambda: b""),
    "blank": ("document_empty", lambda: b" \n\t\n"),
    "page tree loop": ("document_corrupt", hostile.page_loop),
    "no pages": (
        "document_corrupt",
        lambda: hostile.pdf([b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [] /Count 0 >>"]),
    ),
    "a million pages": ("document_bomb", hostile.million_pages),
    "pdf garbage": ("document_corrupt", lambda: b"%PDF-1.7\n" + bytes(range(256)) * 100),
    "flate bomb": ("document_bomb", hostile.flate_bomb),
    "nested flate bomb": ("document_bomb", hostile.nested_flate_bomb),
    "text bomb": ("document_bomb", hostile.text_bomb),
    "repeated contents": ("document_bomb", hostile.repeated_contents),
    "endless contents": ("document_bomb", hostile.endless_contents),
    "one chapter, listed again and again": (
        "document_bomb",
        lambda: epub([chapter(b"again")], ("book.opf", hostile.listed("c0.xhtml", 30_000))),
    ),
    "zip bomb": ("document_bomb", lambda: epub([chapter(b"a " * (33 * MIB))])),
    "docx bomb": ("document_bomb", lambda: docx(paragraph(b"a " * (33 * MIB)))),
    "wide zip bomb": ("document_bomb", hostile.wide_zip_bomb),
    "lying zip": (
        "document_corrupt",
        lambda: hostile.lying_size(epub([chapter(b"a " * (33 * MIB))]), "c0.xhtml"),
    ),
    "many members": (
        "document_bomb",
        lambda: epub([chapter(b"x")], *((f"m{number}", b"") for number in range(10_000))),
    ),
    "cut docx": ("document_corrupt", lambda: docx(paragraph(b"word " * 5000))[:-100]),
    "cut zip": ("document_corrupt", lambda: epub([chapter(b"word " * 5000)])[:-200]),
    "locked zip": ("document_encrypted", lambda: hostile.locked_member(epub([chapter(b"x")]))),
    "drm": (
        "document_encrypted",
        lambda: epub(
            [chapter(b"x")],
            (
                "META-INF/encryption.xml",
                b'<encryption><EncryptionMethod Algorithm="http://www.w3.org/2001/04/xmlenc#aes128-cbc"/></encryption>',
            ),
        ),
    ),
    "missing chapter": (
        "document_corrupt",
        lambda: epub(
            [],
            (
                "book.opf",
                b'<package><manifest><item id="a" href="gone.xhtml"/></manifest>'
                b'<spine><itemref idref="a"/></spine></package>',
            ),
        ),
    ),
    "locked office": (
        "document_encrypted",
        lambda: b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500) + "EncryptedPackage".encode("utf-16-le"),
    ),
    "streams without an end": ("document_corrupt", hostile.open_streams),
    "deep html": ("document_bomb", lambda: b"<!doctype html>" + deep(100_000)),
    "many attributes": (
        "document_bomb",
        lambda: (
            b"<!doctype html><p " + b" ".join(b"a%d='>'" % n for n in range(200_000)) + b">x</p><p>after</p>"
        ),
    ),
    "deep epub": ("document_bomb", lambda: epub([chapter(deep(100_000))])),
    "deep docx": ("document_bomb", lambda: docx(b"<w:sdt>" * 100_000 + b"</w:sdt>" * 100_000)),
    "deep mail": ("document_bomb", hostile.nested_mail),
    "entity bomb in epub": ("document_bomb", lambda: epub([chapter(b"<p>&j;</p>", hostile.ENTITY_BOMB)])),
    "entity bomb in docx": ("document_bomb", lambda: docx(paragraph(b"&j;"), hostile.ENTITY_BOMB)),
    "xxe in docx": ("document_corrupt", lambda: docx(paragraph(b"x &leak; y"), hostile.XXE)),
    "html then pdf": ("type_unsupported", lambda: b"<html>" + hostile.good_pdf()),
    "gif then html": ("type_unsupported", lambda: b"GIF89a=1;<html><body>text</body></html>"),
    "noise": ("type_unsupported", lambda: bytes(range(256)) * 64),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(cells: Cells, case: str, tmp_path: Path) -> None:
    code, make = REFUSED[case]
    path = tmp_path / "hostile"
    path.write_bytes(make())
    with pytest.raises(Permanent) as refused:
        cells.read(path)  # a cell that takes 10 s of CPU is killed
    assert refused.value.code == code, refused.value


#: Some words, and more than libxml2 takes in one piece.
LONG_LINE = b"word word " + (b"w" * 999 + b" ") * 10_500

READ: dict[str, tuple[str, Callable[[], bytes]]] = {
    "nul": ("hello world", lambda: b"hello\x00 world\x00"),
    "lone surrogates": ("lone � one", lambda: b"lone \xed\xa0\x80 one"),
    "surrogate pair": ("an emoji \U0001f600", lambda: b"an emoji \xed\xa0\xbd\xed\xb8\x80"),
    "line of 10 MB": ("word word", lambda: LONG_LINE),
    "html line of 10 MB": ("word word", lambda: b"<!doctype html><p>" + LONG_LINE),
    "markdown line of 10 MB": ("# word", lambda: b"# " + LONG_LINE),
    "many comments": ("y y", lambda: b"<!doctype html><p>" + b"<!-- x -->y " * 200_000),
    "levels that are no numbers": (
        "text",
        lambda: docx(
            b"".join(
                b'<w:p><w:pPr><w:outlineLvl w:val="%b"/><w:numPr><w:ilvl w:val="%b"/><w:numId w:val="1"/></w:numPr>'
                b"</w:pPr><w:r><w:t>text</w:t></w:r></w:p>" % (level, level)
                for level in ("²".encode(), b"9" * 5_000)
            )
        ),
    ),
    "many elements": ("a\n\na", lambda: b"<!doctype html>" + b"<p>a</p>" * 30_000),
    "xxe in epub": (
        "before &leak; after",
        lambda: epub([chapter(b"<p>before &leak; after</p>", hostile.XXE)]),
    ),
    "quite deep html": ("after", lambda: b"<!doctype html>" + deep(1_500) + b"<p>after</p>"),
    "quite deep epub": ("after", lambda: epub([chapter(deep(1_500) + b"<p>after</p>")])),
    "pdf then zip": ("Hello from a page", lambda: hostile.good_pdf() + hostile.zipped([("a", b"b")])),
    "pdf after junk": ("Hello from a page", lambda: b"\x1b%-12345X@PJL JOB\r\n" + hostile.good_pdf()),
    "long member names": (
        "text",
        lambda: epub([chapter(b"text")], ("n" * 300 + ".css", b""), ("../../etc/x", b"")),
    ),
    "mail with an endless parameter": (
        "qapla",
        lambda: (
            b"From: a@example.org\nSubject: x\nContent-Type: text/plain; " + b"(a) . " * 60_000 + b"\n\nqapla"
        ),
    ),
    "false anchor": ("one\n<!-- page=7. -->\ntwo", lambda: b"one\n<!-- page=7 -->\ntwo"),
}


@pytest.mark.parametrize("case", READ)
def test_what_is_read_all_the_same(cells: Cells, case: str, tmp_path: Path) -> None:
    expected, make = READ[case]
    path = tmp_path / "odd"
    path.write_bytes(make())
    told = cells.read(path)
    assert expected in told["text"]
    assert "root:" not in told["text"]


@pytest.mark.parametrize("name", ["n" * 296 + ".pdf", "../../etc/passwd", "\x00.pdf", "Ünïcode\udcff.pdf"])
def test_names_decide_nothing(cells: Cells, name: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"<!doctype html><title>t</title><p>only a page</p>")
    assert cells.read(path, name)["text"] == "only a page"


def test_more_headings_than_parts_are_saved() -> None:
    text = "# a\nb\n" * 100_000
    cut = sections(text)
    assert 5_000 < len(cut) <= caps.PARTS_MAX + 1
    assert "\n".join(cut) == text.rstrip("\n")


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.9, 0.99, 0.999])
@pytest.mark.parametrize("streams", [True, False], ids=["object streams", "plain objects"])
def test_a_pdf_that_was_cut_off(cells: Cells, streams: bool, share: float, tmp_path: Path) -> None:
    whole = made.long_pdf(100, streams=streams)
    path = tmp_path / "cut.pdf"
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(Permanent) as refused:
        cells.read(path)
    assert refused.value.code == "document_corrupt"


def test_no_bit_of_a_pdf_flips_unseen(cells: Cells, tmp_path: Path) -> None:
    assert_no_flip_unseen(cells, made.long_pdf(2, 3000), tmp_path)


@pytest.mark.parametrize("bits", made.REVISIONS)
def test_a_password(cells: Cells, bits: int, tmp_path: Path) -> None:
    content = made.long_pdf(4)
    plain, locked, open_to_read = (tmp_path / f"{name}.pdf" for name in ("plain", "locked", "open"))
    plain.write_bytes(content)
    locked.write_bytes(made.locked(content, bits, user="secret"))
    open_to_read.write_bytes(made.locked(content, bits, user=""))
    with pytest.raises(Permanent) as refused:
        cells.read(locked)
    assert refused.value.code == "document_encrypted"
    assert b"/Encrypt" in open_to_read.read_bytes()
    assert cells.read(open_to_read)["text"] == cells.read(plain)["text"]


def test_said_to_be_something_else(cells: Cells, tmp_path: Path) -> None:
    path = tmp_path / "paper.pdf"
    path.write_bytes(b"<!doctype html><title>Log in</title><form>password</form>")
    with pytest.raises(Permanent) as refused:
        cells.read(path, "paper.pdf", "application/pdf")
    assert refused.value.code == "type_mismatch"


def test_a_bomb_that_nobody_can_look_into_is_ended_by_its_cell(cells: Cells, tmp_path: Path) -> None:
    bomb, good = tmp_path / "bomb.pdf", tmp_path / "good.pdf"
    bomb.write_bytes(made.locked(hostile.text_bomb(), 256, user=""))
    good.write_bytes(made.long_pdf(4))
    limits = replace(LIMITS, memory_bytes=256 * MIB)
    with pytest.raises(CellCrashed) as ended:
        cells.read(bomb, limits=limits)
    assert ended.value.reason in {"memory_exceeded", "SIGABRT", "SIGTRAP", "SIGSEGV"}
    assert cells.read(good, limits=limits)["words"] > 1000


@pytest.mark.parametrize(
    "header",
    [
        "Content-Type: text/plain; name*",
        "Content-Disposition: attachment; filename*",
        "To: text /0\t\t<",
        f"Content-Transfer-Encoding: base6{'(' * 3000}",
        f"Content-Type: text/plain; {'(' * 3000}",
    ],
)
def test_parameters_that_break_the_parser_of_headers_do_not_break_a_message(
    tmp_path: Path, header: str
) -> None:
    path = tmp_path / "cut.eml"
    path.write_text(f"From: a@example.org\nSubject: cut\n{header}\n\nhello\n")
    assert "cut" in join(extract(path))

"""Sound documents made for the tests, with what a reader has to understand: pages, outlines, styles, lists, notes.

Each function returns the bytes of one document, the same for the same arguments (except those under a password).
"""

from __future__ import annotations

import functools
import io
import random
import textwrap
from collections.abc import Mapping, Sequence
from html import escape
from typing import Literal

import pikepdf
from PIL import Image

from tests.pipelines.extract.hostile import CONTAINER, packed, stream, zipped
from tests.pipelines.extract.hostile import pdf as written

#: Revision of the PDF standard's password handler, by the length of its key in bits. 40 and 128 are RC4, 256 is AES.
REVISIONS: dict[int, Literal[2, 3, 6]] = {40: 2, 128: 3, 256: 6}

_LINE_CHARS = 86
_SYLLABLES = "ba de fi go lu mar nes pol qui ran sil tor ven wex zan chi".split()
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_NAMES = f'xmlns:w="{_WORD}" xmlns:r="{_OFFICE}/relationships"'


def prose(words: int, seed: int = 1) -> str:
    """As many words, hardly two of them alike, so that they stay large when they are packed."""
    chance = random.Random(seed)
    return " ".join("".join(chance.choices(_SYLLABLES, k=chance.randint(1, 4))) for _ in range(words))


# --- PDF ------------------------------------------------------------------------------------------


def pdf(
    pages: Sequence[str],
    *,
    title: str = "",
    outline: Sequence[tuple[str, int]] = (),
    streams: bool = True,
) -> bytes:
    """A PDF with a page for each text, whose lines are kept; `outline` gives headings and their pages, from 1.

    Dictionaries are packed, as most programs write them (PDF 1.5), unless `streams` is False.
    """
    with pikepdf.open(io.BytesIO(_classic(pages))) as opened:
        if title:
            opened.docinfo["/Title"] = title
        with opened.open_outline() as marks:
            marks.root.extend(pikepdf.OutlineItem(heading, page - 1) for heading, page in outline)
        out = io.BytesIO()
        mode = pikepdf.ObjectStreamMode.generate if streams else pikepdf.ObjectStreamMode.disable
        opened.save(out, object_stream_mode=mode, deterministic_id=True)
    return out.getvalue()


@functools.cache
def long_pdf(pages: int = 40, words: int = 400, *, streams: bool = True) -> bytes:
    """A PDF with as many pages of as many words, a different text on each."""
    texts = [
        f"Page {number} of {pages}\n" + textwrap.fill(prose(words, number), _LINE_CHARS)
        for number in range(1, pages + 1)
    ]
    return pdf(texts, title="A long paper", streams=streams)


def locked(content: bytes, bits: int, *, user: str, owner: str = "owner") -> bytes:
    """The same PDF, encrypted with a key of `bits`; nobody is asked for a password if `user` is empty."""
    out = io.BytesIO()
    with pikepdf.open(io.BytesIO(content)) as opened:
        modern = bits > 128
        lock = pikepdf.Encryption(user=user, owner=owner, R=REVISIONS[bits], aes=modern, metadata=modern)
        opened.save(out, encryption=lock)
    return out.getvalue()


def _classic(pages: Sequence[str]) -> bytes:
    first = 4
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%s] /Count %d >>"
        % (b" ".join(b"%d 0 R" % (first + 2 * index) for index in range(len(pages))), len(pages)),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
    ]
    for index, text in enumerate(pages):
        lines = (b"(%s) Tj T*" % _escaped(line) for line in text.split("\n"))
        content = b"BT /F1 9 Tf 11 TL 50 760 Td\n" + b"\n".join(lines) + b"\nET"
        objects += [
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R "
            b"/Resources << /Font << /F1 3 0 R >> >> >>" % (first + 2 * index + 1),
            stream(packed([content]), b"/Filter /FlateDecode"),
        ]
    return written(objects)


def _escaped(text: str) -> bytes:
    return text.encode("cp1252").replace(b"\\", rb"\\").replace(b"(", rb"\(").replace(b")", rb"\)")


# --- DOCX -----------------------------------------------------------------------------------------


def docx(
    body: str,
    *,
    title: str = "",
    links: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
    more: Mapping[str, bytes] | None = None,
) -> bytes:
    """A Word document with styles, lists (1: bullets, 2: numbers), links by their ids, footnotes from 1, a picture."""
    relations = [
        ("styles", "styles", "styles.xml", ""),
        ("numbering", "numbering", "numbering.xml", ""),
        ("footnotes", "footnotes", "footnotes.xml", ""),
        ("picture", "image", "media/image1.png", ""),
        *((id_, "hyperlink", target, ' TargetMode="External"') for id_, target in (links or {}).items()),
    ]
    members = {
        "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types"/>',
        "_rels/.rels": _relations([("main", "officeDocument", "word/document.xml", "")]),
        "docProps/core.xml": f'<cp:coreProperties xmlns:cp="{_PACKAGE}/metadata/core-properties" '
        f'xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>{escape(title)}</dc:title></cp:coreProperties>',
        "word/document.xml": f"<w:document {_NAMES}><w:body>{body}<w:sectPr/></w:body></w:document>",
        "word/_rels/document.xml.rels": _relations(relations),
        "word/styles.xml": _styles(),
        "word/numbering.xml": _numbering(),
        "word/footnotes.xml": f"<w:footnotes {_NAMES}>"
        + "".join(
            f'<w:footnote w:id="{n}">{paragraph(run(text))}</w:footnote>' for n, text in enumerate(notes, 1)
        )
        + "</w:footnotes>",
    }
    picture = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(picture, "PNG")
    return zipped(
        [
            *((name, text.encode()) for name, text in members.items()),
            ("word/media/image1.png", picture.getvalue()),
            *(more or {}).items(),
        ]
    )


@functools.cache
def detailed_docx() -> bytes:
    """A document with a title, headings, marked text, a link, a footnote, lists, a table, a picture and a quotation."""
    body = [
        paragraph(run("All of it"), style="Titel"),
        paragraph(run("One"), style="berschrift1"),
        paragraph(
            run("A ") + run("bold", "b") + run(" and ") + run("slanted", "i") + run(" ")
            + link("out", "link") + run(".") + note(1) + picture()
        ),
        *(paragraph(run(text), listed=(1, depth)) for text, depth in (("a", 0), ("b", 1), ("c", 0))),
        paragraph(run("Between the lists")),
        *(paragraph(run(text), listed=(2, 0)) for text in ("first", "second")),
        table([["h", "i"], ["1", "2"]]),
        paragraph(run("Two"), style="berschrift1"),
        paragraph(run("quoted"), style="Zitat"),
    ]  # fmt: skip
    return docx("".join(body), title="All of it", links={"out": "https://example.org/"}, notes=["A note."])


def run(text: str, properties: str = "") -> str:
    """A piece of text; `properties` are the names of what it is, as in "b i"."""
    marks = "".join(f"<w:{name}/>" for name in properties.split())
    return f'<w:r><w:rPr>{marks}</w:rPr><w:t xml:space="preserve">{escape(text)}</w:t></w:r>'


def paragraph(runs: str, *, style: str = "", listed: tuple[int, int] | None = None) -> str:
    """A paragraph; `listed` is the list it belongs to and its depth there."""
    number = (
        f'<w:numPr><w:ilvl w:val="{listed[1]}"/><w:numId w:val="{listed[0]}"/></w:numPr>' if listed else ""
    )
    named = f'<w:pStyle w:val="{style}"/>' if style else ""
    return f"<w:p><w:pPr>{named}{number}</w:pPr>{runs}</w:p>"


def table(rows: Sequence[Sequence[str]]) -> str:
    cells = ("".join(f"<w:tc><w:tcPr/>{paragraph(run(cell))}</w:tc>" for cell in row) for row in rows)
    return "<w:tbl><w:tblPr/><w:tblGrid/>" + "".join(f"<w:tr>{row}</w:tr>" for row in cells) + "</w:tbl>"


def link(id_: str, text: str) -> str:
    return f'<w:hyperlink r:id="{id_}">{run(text)}</w:hyperlink>'


def note(number: int) -> str:
    return f'<w:r><w:footnoteReference w:id="{number}"/></w:r>'


def picture() -> str:
    """The picture of the document, with a name that is no text of it."""
    return (
        '<w:r><w:drawing><wp:inline xmlns:wp="http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing">'
        '<wp:docPr id="1" name="Picture 1" descr="a red square"/><a:graphic '
        'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"><a:graphicData><a:blip r:embed="picture"/>'
        "</a:graphicData></a:graphic></wp:inline></w:drawing></w:r>"
    )


def _relations(known: Sequence[tuple[str, str, str, str]]) -> str:
    entries = (
        f'<Relationship Id="{id_}" Type="{_OFFICE}/relationships/{kind}" Target="{escape(target)}"{more}/>'
        for id_, kind, target, more in known
    )
    return f'<Relationships xmlns="{_PACKAGE}/relationships">{"".join(entries)}</Relationships>'


def _styles() -> str:
    # Ids are translated in other languages' Word, names are not.
    names = {"Titel": "Title", "berschrift1": "heading 1", "berschrift2": "heading 2", "Zitat": "Quote"}
    styles = (
        f'<w:style w:type="paragraph" w:styleId="{id_}"><w:name w:val="{name}"/></w:style>'
        for id_, name in names.items()
    )
    return f"<w:styles {_NAMES}>{''.join(styles)}</w:styles>"


def _numbering() -> str:
    def shape(number: int, form: str) -> str:
        levels = (f'<w:lvl w:ilvl="{depth}"><w:numFmt w:val="{form}"/></w:lvl>' for depth in range(3))
        return f'<w:abstractNum w:abstractNumId="{number}">{"".join(levels)}</w:abstractNum>'

    lists = "".join(f'<w:num w:numId="{n}"><w:abstractNumId w:val="{n + 6}"/></w:num>' for n in (1, 2))
    return f"<w:numbering {_NAMES}>{shape(7, 'bullet')}{shape(8, 'decimal')}{lists}</w:numbering>"


# --- EPUB and HTML --------------------------------------------------------------------------------


def epub(title: str, chapters: Mapping[str, str], *, language: str = "en", contents: str = "nav") -> bytes:
    """A book; name of the chapter → its XHTML. The names stand in its table of contents alone: "nav" (EPUB 3),
    "ncx" (EPUB 2) or none ("")."""
    files = {f"text/c{number}.xhtml": body for number, body in enumerate(chapters.values(), 1)}
    listed = list(zip(files, chapters, strict=True))
    items = "".join(f'<item id="c{n}" href="{name}"/>' for n, name in enumerate(files, 1))
    spine = "".join(f'<itemref idref="c{n}"/>' for n in range(1, len(files) + 1))
    toc = {"nav": ("nav.xhtml", _nav(listed)), "ncx": ("toc.ncx", _ncx(listed))}.get(contents)
    if toc:
        items += f'<item id="toc" href="{toc[0]}" properties="{contents if contents == "nav" else ""}"/>'
    package = (
        '<package xmlns="http://www.idpf.org/2007/opf" xmlns:dc="http://purl.org/dc/elements/1.1/"><metadata>'
        f"<dc:title>{escape(title)}</dc:title><dc:language>{language}</dc:language></metadata>"
        f'<manifest>{items}</manifest><spine toc="{"toc" if contents == "ncx" else ""}">{spine}</spine></package>'
    )
    members = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": CONTAINER.decode(),
        "book.opf": package,
    }
    members |= dict([toc]) if toc else {}
    members |= {name: _xhtml(body) for name, body in files.items()}
    return zipped((name, text.encode()) for name, text in members.items())


@functools.cache
def detailed_epub(contents: str = "nav") -> bytes:
    """A book whose chapters have headings or only a name in the table of contents, with all kinds of markup."""
    chapters = {
        "Foreword": f"<p>Before all. {prose(60, 1)}</p>",
        "One": "<h1>One</h1><p>Some <b>bold</b> and <i>slanted</i> text.</p><ul><li>a</li><li>b</li></ul>"
        + prose(60, 2),
        "Two": "<h1>Two</h1><table><tr><th>h</th><th>i</th></tr><tr><td>1</td><td>2</td></tr></table>",
        "Three": "<h1>Three</h1><blockquote>quoted</blockquote><pre>x = 1</pre><p>A <a href='https://e.org/'>link</a></p>",
    }
    return epub("A detailed book", chapters, contents=contents)


def _nav(listed: Sequence[tuple[str, str]]) -> str:
    entries = "".join(f'<li><a href="{name}">{escape(title)}</a></li>' for name, title in listed)
    return _xhtml(f'<nav xmlns:epub="http://www.idpf.org/2007/ops" epub:type="toc"><ol>{entries}</ol></nav>')


def _ncx(listed: Sequence[tuple[str, str]]) -> str:
    points = "".join(
        f'<navPoint><navLabel><text>{escape(title)}</text></navLabel><content src="{name}"/></navPoint>'
        for name, title in listed
    )
    return f'<ncx xmlns="http://www.daisy.org/z3986/2005/ncx/"><navMap>{points}</navMap></ncx>'


def _xhtml(body: str) -> str:
    return f'<html xmlns="http://www.w3.org/1999/xhtml"><head><title/></head><body>{body}</body></html>'


def page(title: str, sections: Mapping[str, str]) -> bytes:
    """A web page; heading → text."""
    body = "".join(f"<h2>{escape(heading)}</h2><p>{escape(text)}</p>" for heading, text in sections.items())
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title></head>'
        f"<body><nav><a href='/'>Home</a></nav><main><h1>{escape(title)}</h1>{body}</main></body></html>"
    ).encode()

"""Real documents, word for word beside what an independent program finds in them."""

from __future__ import annotations

import re
import zipfile
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from perdure.errors import Permanent
from perdure.pipelines.extract import Part, anchor_at, extract, join, open_reader, summarise
from tests.pipelines.extract.damage import assert_no_flip_unseen, assert_read_or_refused
from tests.pipelines.extract.reading import Cells
from tests.pipelines.extract.shelf import EPUBS, PAGES, PDFS, RST, Shelf, long_book


def words(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", text))


def recall(expected: str, parts: list[Part]) -> float:
    wanted = words(expected)
    found = words("\n".join(part.text for part in parts))
    return (wanted & found).total() / wanted.total()


class Plain(HTMLParser):
    """The text of a page by the standard library, without scripts and what surrounds the text."""

    HIDDEN = frozenset("script style title nav".split())
    ROLES = frozenset("navigation search contentinfo banner complementary".split())
    VOID = frozenset("br hr img input link meta col wbr area base".split())
    SPACED = frozenset("p li td th br div dt dd tr h1 h2 h3 h4".split())

    def __init__(self, page: str) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self._open: list[tuple[str, bool]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.pieces.append(" " if tag in self.SPACED else "")
        if tag not in self.VOID:
            self._open.append((tag, tag in self.HIDDEN or dict(attrs).get("role") in self.ROLES))

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        while any(name == tag for name, _ in self._open) and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not any(hidden for _, hidden in self._open):
            self.pieces.append(data)


def plain(page: str) -> str:
    return "".join(Plain(page).pieces)


@pytest.mark.parametrize("name", PDFS)
def test_every_word_of_a_pdf_is_found(shelf: Shelf, name: str) -> None:
    path = shelf.plain(PDFS[name])
    parts = list(extract(path))
    assert recall(shelf.tool("pdftotext", "-q", path, "-"), parts) >= 0.99
    pages = int(re.search(r"Pages:\s+(\d+)", shelf.tool("pdfinfo", path))[1])  # type: ignore[index]
    assert [part.anchor for part in parts] == [f"page={number}" for number in range(1, pages + 1)]


@pytest.mark.parametrize("name", EPUBS)
def test_every_word_of_an_epub_is_found(shelf: Shelf, name: str) -> None:
    path = Path(EPUBS[name])
    with zipfile.ZipFile(path) as book:
        package = next(name for name in book.namelist() if name.endswith(".opf"))
        spine = re.findall(r'<itemref[^>]*idref="([^"]+)"', book.read(package).decode())
        hrefs = {
            re.search(r'\bid="([^"]+)"', item)[1]: re.search(r'\bhref="([^"]+)"', item)[1]  # type: ignore[index]
            for item in re.findall(r"<item [^>]+>", book.read(package).decode())
        }
        folder = package.rpartition("/")[0]
        chapters = [book.read(f"{folder}/{hrefs[one]}".lstrip("/")).decode() for one in spine]
    parts = list(extract(path))
    assert len(parts) == len(chapters) >= 5
    assert recall(" ".join(map(plain, chapters)), parts) >= 0.99


@pytest.mark.parametrize("name", PAGES)
def test_every_word_of_a_page_that_is_all_text_is_found(shelf: Shelf, name: str) -> None:
    path = Path(PAGES[name])
    parts = list(extract(path))
    page = path.read_bytes().decode(errors="replace")
    assert recall(plain(page), parts) >= 0.99
    assert len(parts) > 1
    assert all(part.headings for part in parts[1:])


def test_a_book_of_500_chapters(shelf: Shelf) -> None:
    source = shelf.write("long.md", "---\ntitle: A long book\nlang: en\n---\n" + long_book())
    path = shelf.pandoc([source], "long.epub", "--epub-chapter-level=1")
    with open_reader(path, "application/epub+zip") as reader:
        parts = [reader.read(key) for key in reader.parts]
        summary = summarise(parts, reader.title, reader.language)
    chapters = [part for part in parts if part.title.startswith("Chapter")]
    assert [part.title for part in chapters] == [f"Chapter {number}" for number in range(1, 501)]
    assert (summary.title, summary.language) == ("A long book", "en")
    assert recall(long_book(), parts) >= 0.99
    markdown = join(parts)
    assert anchor_at(markdown, markdown.index("End of 321.")) == chapters[320].anchor


@pytest.mark.parametrize("kind", ["docx", "epub", "html"])
def test_what_pandoc_writes_is_read(shelf: Shelf, kind: str) -> None:
    sources = [Path(RST) / f"{name}.rst.txt" for name in ("developer-duties", "l10n", "tools")]
    options = ["--from=rst", "--standalone", "--metadata=title:Duties"]
    path = shelf.pandoc(sources, f"duties.{kind}", *options)
    reference = shelf.pandoc(sources, "duties.txt", *options, "--to=plain", "--wrap=none").read_text()
    with open_reader(path) as reader:
        parts = [reader.read(key) for key in reader.parts]
        summary = summarise(parts, reader.title, reader.language)
    assert recall(reference.replace("_", " "), parts) >= 0.99
    assert summary.title == "Duties"
    titles = {heading.title for heading in summary.outline}
    assert {"Registering to vote", "Debian maintainer tools"} <= titles or "Tools" in str(titles)
    assert summary.language == "en"


@pytest.mark.parametrize(
    ("name", "language"), [(name, name[-2:]) for name in PDFS if name.startswith("guide")]
)
def test_the_language_is_told(shelf: Shelf, name: str, language: str) -> None:
    with open_reader(shelf.plain(PDFS[name])) as reader:
        parts = [reader.read(key) for key in reader.parts]
        assert summarise(parts, reader.title).language == language


def test_the_outline_of_a_pdf_leads_to_its_pages(shelf: Shelf) -> None:
    with open_reader(shelf.plain(PDFS["policy"])) as reader:
        parts = [reader.read(key) for key in reader.parts]
    summary = summarise(parts, reader.title)
    assert summary.title == "Debian Policy Manual"
    scope = next(heading for heading in summary.outline if heading.title.endswith("Scope"))
    page = next(part for part in parts if part.anchor == scope.anchor)
    assert re.search(r"^#+ .*Scope$", page.text, re.M)
    markdown = join(parts)
    assert anchor_at(markdown, markdown.index(page.text)) == scope.anchor


def test_docx_in_detail(shelf: Shelf) -> None:
    source = shelf.write(
        "detail.md",
        "---\ntitle: All of it\n---\n\n# One\n\nA **bold** and *slanted* [link](https://example.org/).^[A note.]\n\n"
        "- a\n    - b\n- c\n\n1. first\n2. second\n\n| h | i |\n|---|---|\n| 1 | 2 |\n\n# Two\n\n> quoted\n",
    )
    with open_reader(shelf.pandoc([source], "detail.docx")) as reader:
        parts = [reader.read(key) for key in reader.parts]
    text = "\n".join(part.text for part in parts)
    assert reader.title == "All of it"
    assert "A **bold** and *slanted* [link](https://example.org/)" in text
    assert "- a\n  - b\n- c" in text
    assert "1. first\n1. second" in text
    assert "| h | i |\n| --- | --- |\n| 1 | 2 |" in text
    assert "A note." in text
    assert [heading.title for part in parts for heading in part.headings][-2:] == ["One", "Two"]


def test_markdown_is_kept(shelf: Shelf) -> None:
    path = shelf.pandoc([Path(RST) / "pkgs.rst.txt"], "pkgs.md", "--from=rst")
    parts = list(extract(path, name="pkgs.md"))
    assert "\n".join(part.text for part in parts).split() == path.read_text().split()
    assert len(parts) > 5


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.9, 0.999])
def test_a_pdf_that_was_cut_off(shelf: Shelf, share: float) -> None:
    whole = shelf.plain(PDFS["r-intro"]).read_bytes()
    with pytest.raises(Permanent) as refused:
        list(extract(whole[: int(share * len(whole))]))
    assert refused.value.code == "document_corrupt"


def test_no_bit_of_a_pdf_flips_unseen(shelf: Shelf, cells: Cells, tmp_path: Path) -> None:
    assert_no_flip_unseen(cells, shelf.plain(PDFS["refcard"]).read_bytes(), tmp_path)


@pytest.mark.parametrize("kind", ["docx", "epub", "html", "pdf"])
def test_damage_is_refused_or_read(shelf: Shelf, kind: str) -> None:
    if kind == "pdf":
        path = shelf.plain(PDFS["refcard"])
    else:
        path = shelf.pandoc([Path(RST) / "l10n.rst.txt"], f"damaged.{kind}", "--from=rst", "-s")
    assert_read_or_refused(path.read_bytes(), archive=kind in ("docx", "epub"))

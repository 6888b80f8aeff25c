"""DOCX: headings, paragraphs, lists, tables, links, footnotes. A zip file of XML, read without any Word library."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.errors import Permanent
from perdure.pipelines.extract.archive import Archive, resolve
from perdure.pipelines.extract.docx_parts import (
    R,
    W,
    core,
    heading_levels,
    main_name,
    numbered_lists,
    relations,
    tag,
    value,
    xml,
)
from perdure.pipelines.extract.part import Part, clean, make_part, missed_words, sections

if TYPE_CHECKING:
    from lxml.etree import _Element

_SKIPPED = frozenset("del moveFrom instrText delText Fallback rPr pPr sectPr tblPr tblGrid proofErr".split())
_WORD_BYTES = 12  # of a file that is put in, with its markup
_TABLES_MAX = 8  # deeper ones keep their text and lose their cells
_MARKED = {"i": "*", "b": "**"}
_SIGNS = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}


class DocxReader:
    """Sections from 1, cut at the main headings."""

    piecemeal = False
    markdown = True

    def __init__(self, path: Path) -> None:
        archive = Archive(path)
        try:
            self.title, self.language = core(archive)
            body = _Body(archive)
            text = clean(body.markdown())
            self._missed = body.missed(text)
        finally:
            archive.close()
        if not text.strip():
            raise Permanent("document_empty", "there is no text in this document")
        self._sections = sections(text)
        self.parts = range(1, len(self._sections) + 1)

    def read(self, key: int) -> Part:
        return make_part("section", key, self._sections[key - 1], missed=self._missed if key == 1 else 0)

    def close(self) -> None:
        self._sections = []


class _Body:
    """The document as Markdown; depth is bounded by libxml2 (256 levels), so it may recurse."""

    def __init__(self, archive: Archive) -> None:
        self._name = main_name(archive)
        self._archive = archive
        self._root = xml(archive, self._name)
        self._links = relations(archive, self._name)
        self._levels = heading_levels(self._part("styles.xml"))
        self._numbered = numbered_lists(self._part("numbering.xml"))
        self._notes: list[tuple[str, str]] = []
        self._tables = 0  # that are open

    def markdown(self) -> str:
        text = _join(self._blocks(self._root))
        notes = [line for kind in ("footnote", "endnote") for line in self._note_lines(kind)]
        return "\n\n".join([text, *notes])

    def missed(self, text: str) -> int:
        """Words of the document that are not in the text, and about as many as files have that are put into it."""
        kept = " ".join(_texts(self._root))
        inserted = (
            resolve(self._name, self._links.get(chunk.get(f"{R}id") or "", ""))
            for chunk in self._root.iter(f"{W}altChunk")
        )
        embedded = sum(self._archive.size(name) for name in inserted) // _WORD_BYTES
        return missed_words(kept, text) + embedded

    def _part(self, name: str) -> _Element | None:
        member = resolve(self._name, name)
        return xml(self._archive, member) if member in self._archive else None

    def _blocks(self, node: _Element) -> list[str]:
        found: list[str] = []
        self._add_blocks(node, found)
        return found

    def _add_blocks(self, node: _Element, found: list[str]) -> None:
        # All levels add to one list: handed up level by level, a deep text would cost its length at each.
        for child in node:
            kind = tag(child)
            if kind == "p":
                self._add_paragraph(child, found)
            elif kind == "tbl" and self._tables < _TABLES_MAX:
                self._tables += 1
                found.append(self._table(child))
                self._tables -= 1
            elif kind not in _SKIPPED:
                self._add_blocks(child, found)

    def _add_paragraph(self, node: _Element, found: list[str]) -> None:
        boxes: list[str] = []
        text = self._inline(node, boxes).strip()
        properties = node.find(f"{W}pPr")
        level = self._level(properties)
        if text and level:
            found.append(f"{'#' * min(level, 6)} {' '.join(text.split())}")
        elif text:
            marker = self._marker(properties)
            found.append(marker + text if marker else re.sub(r"^(#{1,6} )", r"\\\1", text))
        found += boxes

    def _inline(self, node: _Element, boxes: list[str]) -> str:
        """Text with its marks. Neighbours that have the same are marked together, and no mark stands inside a word: it
        would cut the word apart for whoever searches."""
        pieces: list[tuple[str, str]] = []
        self._add_pieces(node, boxes, pieces)
        groups: list[tuple[str, list[str]]] = [("", [])]
        for marks, text in pieces:
            if marks != groups[-1][0] and text.strip():
                groups.append((marks, []))
            groups[-1][1].append(text)
        texts = ["", *("".join(texts) for _, texts in groups), ""]
        return "".join(
            text if _joined(before, text) or _joined(text, after) else _mark(text, marks)
            for (marks, _), before, text, after in zip(groups, texts, texts[1:], texts[2:], strict=False)
        )

    def _add_pieces(self, node: _Element, boxes: list[str], pieces: list[tuple[str, str]]) -> None:
        for child in node:
            kind = tag(child)
            if kind == "r":
                pieces.append((_marks(child.find(f"{W}rPr")), self._inline(child, boxes)))
            elif kind == "t":
                pieces.append(("", child.text or ""))
            elif kind in _SIGNS:
                pieces.append(("", _SIGNS[kind]))
            elif kind == "hyperlink":
                pieces.append(("", self._link(child, self._inline(child, boxes))))
            elif kind in {"footnoteReference", "endnoteReference"}:
                note = self._note(kind.removesuffix("Reference"), child.get(f"{W}id") or "")
                pieces.append(("", note))
            elif kind == "txbxContent":
                self._add_blocks(child, boxes)
            elif kind not in _SKIPPED:
                self._add_pieces(child, boxes, pieces)

    def _level(self, properties: _Element | None) -> int:
        if properties is None:
            return 0
        outline = properties.find(f"{W}outlineLvl")
        if outline is not None and (level := _digit(outline.get(f"{W}val") or "9")) is not None:
            return (level + 1) % 10
        return self._levels.get(value(properties, "pStyle"), 0)

    def _marker(self, properties: _Element | None) -> str:
        numbering = properties.find(f"{W}numPr") if properties is not None else None
        if numbering is None:
            return ""
        depth = value(numbering, "ilvl")
        listed = value(numbering, "numId")
        indent = "  " * min(_digit(depth) or 0, 8)
        numbered = (depth or "0") in self._numbered.get(listed, ())
        return "" if listed == "0" else indent + ("1. " if numbered else "- ")

    def _link(self, node: _Element, text: str) -> str:
        target = self._links.get(node.get(f"{R}id") or "", "")
        usable = target.startswith(("http://", "https://", "mailto:")) and text.strip()
        return f"[{text}]({target})" if usable else text

    def _note(self, kind: str, number: str) -> str:
        self._notes.append((kind, number))
        return f"[^{number if kind == 'footnote' else f'e{number}'}]"

    def _note_lines(self, kind: str) -> Iterable[str]:
        wanted = {number for noted, number in self._notes if noted == kind}
        root = self._part(f"{kind}s.xml") if wanted else None
        for note in root.iter(f"{W}{kind}") if root is not None else ():
            number = note.get(f"{W}id") or ""
            if number in wanted:
                label = number if kind == "footnote" else f"e{number}"
                yield f"[^{label}]: {' '.join(' '.join(self._blocks(note)).split())}"

    def _table(self, node: _Element) -> str:
        rows = [
            [
                " ".join(" ".join(self._blocks(cell)).split()).replace("|", "\\|")
                for cell in _within(row, "tc")
            ]
            for row in _within(node, "tr")
        ]
        lines = [f"| {' | '.join(row)} |" for row in rows if any(row)]
        if lines:
            lines.insert(1, "|" + " --- |" * max(1, len(rows[0])))
        return "\n".join(lines)


def _join(blocks: Iterable[str]) -> str:
    # Items of one list stand on consecutive lines.
    out: list[str] = []
    for block in blocks:
        if block:
            listed = re.match(r" *(?:- |1\. )", block) and out and re.match(r" *(?:- |1\. )", out[-1])
            out += ["\n" if listed else "\n\n", block] if out else [block]
    return "".join(out)


def _digit(text: str) -> int | None:
    """The level that a file names, 0 to 9; None for anything else."""
    return int(text) if len(text) == 1 and "0" <= text <= "9" else None


def _marks(properties: _Element | None) -> str:
    """What a run is marked with."""
    if properties is None:
        return ""
    named = ((mark, properties.find(f"{W}{name}")) for name, mark in _MARKED.items())
    return "".join(
        mark for mark, found in named if found is not None and found.get(f"{W}val") not in ("0", "false")
    )


def _mark(text: str, marks: str) -> str:
    core = text.strip()
    return text.replace(core, f"{marks}{core}{marks}", 1) if marks and core else text


def _joined(before: str, after: str) -> bool:
    """Whether a word goes on from one text to the other."""
    return before[-1:].isalnum() and after[:1].isalnum()


def _texts(root: _Element) -> Iterator[str]:
    """The texts below it, without those that are left out on purpose or that are there twice."""
    from lxml import etree

    walk = etree.iterwalk(root, events=("start",))
    for _, node in walk:
        if tag(node) in _SKIPPED:
            walk.skip_subtree()
        elif node.tag == f"{W}t":
            yield node.text or ""


def _within(node: _Element, kind: str) -> list[_Element]:
    """Rows of a table, cells of a row, also where something is wrapped around them; not those of tables inside."""
    found: list[_Element] = []
    waiting = list(reversed(node))
    while waiting:
        child = waiting.pop()
        if tag(child) == kind:
            found.append(child)
        elif tag(child) not in _SKIPPED:
            waiting += reversed(child)
    return found

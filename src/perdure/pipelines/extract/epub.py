"""EPUB, chapter by chapter in reading order: a zip file of XHTML with a list of what comes after what."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.errors import Permanent
from perdure.pipelines.extract import caps
from perdure.pipelines.extract.archive import Archive, parse_xml, resolve
from perdure.pipelines.extract.caps import bomb
from perdure.pipelines.extract.charset import decode_markup
from perdure.pipelines.extract.docx_parts import tag as tag_of
from perdure.pipelines.extract.markup import parse_html, to_markdown
from perdure.pipelines.extract.part import Heading, Part, clean, make_part, missed_words

if TYPE_CHECKING:
    from lxml.etree import _Element

_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_FONT_METHODS = (
    "http://www.idpf.org/2008/embedding",
    "http://ns.adobe.com/pdf/enc#RC",
)  # veil fonts, not text
_ENTITY = re.compile(rb"&([A-Za-z][A-Za-z0-9]{1,31});")
_XML_ENTITIES = {b"amp", b"lt", b"gt", b"quot", b"apos"}
_DECLARATIONS = re.compile(r"^\s*(?:<\?xml[^>]*\?>)?\s*(?:<!DOCTYPE[^>\[]*(?:\[.*?\]\s*)?>)?", re.S | re.I)
_EPUB_TYPE = "{http://www.idpf.org/2007/ops}type"


class EpubReader:
    """Chapters from 1, as the spine lists them."""

    piecemeal = True
    markdown = True

    def __init__(self, path: Path) -> None:
        self._archive = Archive(path)
        self._check_encryption()
        package = self._package_name()
        root = parse_xml(self._archive.read(package), package)
        items = {item.get("id"): item for item in _named(root, "item")}
        spine = [items.get(reference.get("idref")) for reference in _named(root, "itemref")]
        self._chapters = [resolve(package, item.get("href") or "") for item in spine if item is not None]
        if not self._chapters:
            raise Permanent("document_empty", "this EPUB lists no chapters")
        if len(self._chapters) > caps.PARTS_MAX:
            raise bomb(f"it lists {len(self._chapters)} chapters, at most {caps.PARTS_MAX} are read")
        if sum(map(self._archive.size, self._chapters)) > caps.ARCHIVE_BYTES_MAX:
            raise bomb(f"its chapters unpack to more than {caps.ARCHIVE_BYTES_MAX} bytes")
        self.parts = range(1, len(self._chapters) + 1)
        self.title = _first_text(root, "title")
        self.language = _first_text(root, "language").lower()[:2]
        self._titles = self._contents(package, items, root)

    def read(self, key: int) -> Part:
        name = self._chapters[key - 1]
        root = _parse_chapter(self._archive.read(name), name)
        text = to_markdown(root)
        title = self._titles.get(name, "")
        part = make_part("chapter", key, text, title, missed=missed_words(_all_text(root), text))
        if title and not part.headings:
            return replace(part, headings=(Heading(1, title, part.anchor),))
        return part

    def close(self) -> None:
        self._archive.close()

    def _check_encryption(self) -> None:
        if _ENCRYPTION in self._archive:
            root = parse_xml(self._archive.read(_ENCRYPTION), _ENCRYPTION)
            methods = {method.get("Algorithm") for method in _named(root, "EncryptionMethod")}
            if methods - set(_FONT_METHODS):
                raise Permanent("document_encrypted", "this EPUB is protected (DRM)")

    def _package_name(self) -> str:
        root = parse_xml(self._archive.read(_CONTAINER), _CONTAINER)
        name = next((found.get("full-path") for found in _named(root, "rootfile")), None)
        if not name:
            raise Permanent("document_corrupt", f"{_CONTAINER} names no package")
        return resolve("", name)

    def _contents(self, package: str, items: dict[Any, _Element], root: _Element) -> dict[str, str]:
        # Titles of chapters from the table of contents; a book without a readable one is still a book.
        navigation = next(
            (item for item in items.values() if "nav" in (item.get("properties") or "").split()), None
        )
        spine = next(_named(root, "spine"), None)
        old = items.get(spine.get("toc")) if spine is not None else None
        titles: dict[str, str] = {}
        for item, entries in ((navigation, _nav_entries), (old, _ncx_entries)):
            name = resolve(package, item.get("href") or "") if item is not None else ""
            if name not in self._archive or titles:
                continue
            for href, title in entries(_parse_chapter(self._archive.read(name), name)):
                if href and title:
                    titles.setdefault(resolve(name, href), title)
        return titles


def _parse_chapter(data: bytes, name: str) -> Any:
    # XHTML is XML, but many books are only nearly so.
    known = _ENTITY.sub(_character, data)
    try:
        return parse_xml(known, name)
    except Permanent as error:
        if error.code == "document_bomb" and "amplification" in str(error):
            raise
        return parse_html(_DECLARATIONS.sub("", decode_markup(data), count=1))


def _character(entity: re.Match[bytes]) -> bytes:
    if entity[1] in _XML_ENTITIES:
        return entity[0]
    text = html.unescape(entity[0].decode())
    return entity[0] if text.startswith("&") else "".join(f"&#{ord(char)};" for char in text).encode()


def _all_text(root: _Element) -> str:
    """Everything that is text in the body, whatever stands around it."""
    body = next(_named(root, "body"), root)
    pieces = (
        (node.text, node.tail) for node in body.iter() if tag_of(node) not in ("script", "style", "title")
    )
    return " ".join(piece for pair in pieces for piece in pair if piece)


def _named(root: _Element, name: str) -> Iterator[_Element]:
    return root.iter(f"{{*}}{name}")


def _first_text(root: _Element, name: str) -> str:
    return next((text for found in _named(root, name) if (text := _text(found))), "")


def _text(node: _Element) -> str:
    return " ".join(clean("".join(node.itertext())).split())  # type: ignore[arg-type]


def _nav_entries(root: _Element) -> Iterator[tuple[str, str]]:
    for nav in _named(root, "nav"):
        if nav.get(_EPUB_TYPE, nav.get("epub:type", "toc")) == "toc":
            yield from ((link.get("href") or "", _text(link)) for link in _named(nav, "a"))


def _ncx_entries(root: _Element) -> Iterator[tuple[str, str]]:
    for point in _named(root, "navPoint"):
        content = next(_named(point, "content"), None)
        yield (content.get("src") or "" if content is not None else "", _first_text(point, "text"))

"""What a DOCX says beside its text: which styles are headings, which lists have numbers, where links lead."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from perdure.pipelines.extract.archive import Archive, parse_xml, resolve
from perdure.pipelines.extract.part import clean

if TYPE_CHECKING:
    from lxml.etree import _Element

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
R = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_STRICT = b"http://purl.oclc.org/ooxml/wordprocessingml/main"
_STRICT_R = b"http://purl.oclc.org/ooxml/officeDocument/relationships"
_DOCUMENT = "word/document.xml"
_HEADING = re.compile(r"heading ([1-9])$")


def tag(node: _Element) -> str:
    name: Any = node.tag  # a function for comments
    return name.rpartition("}")[2] if isinstance(name, str) else ""


def value(properties: _Element, name: str) -> str:
    found = properties.find(f"{W}{name}")
    return "" if found is None else found.get(f"{W}val") or ""


def xml(archive: Archive, name: str) -> _Element:
    data = archive.read(name).replace(_STRICT, W[1:-1].encode()).replace(_STRICT_R, R[1:-1].encode())
    return parse_xml(data, name)


def main_name(archive: Archive) -> str:
    for kind, target in _relation_list(archive, "_rels/.rels"):
        if kind.endswith("/officeDocument"):
            return resolve("", target[1])
    return _DOCUMENT


def _relation_list(archive: Archive, name: str) -> Iterator[tuple[str, tuple[str, str]]]:
    if name in archive:
        for relation in parse_xml(archive.read(name), name):
            yield relation.get("Type") or "", (relation.get("Id") or "", relation.get("Target") or "")


def relations(archive: Archive, name: str) -> dict[str, str]:
    folder, _, base = name.rpartition("/")
    return dict(found for _, found in _relation_list(archive, f"{folder}/_rels/{base}.rels".lstrip("/")))


def heading_levels(styles: _Element | None) -> dict[str, int]:
    levels: dict[str, int] = {}
    for style in styles.iter(f"{W}style") if styles is not None else ():
        name = (value(style, "name")).lower()
        found = _HEADING.match(name)
        if found or name == "title":
            levels[style.get(f"{W}styleId") or ""] = int(found[1]) if found else 1
    return levels


def numbered_lists(numbering: _Element | None) -> dict[str, Collection[str]]:
    """The depths of each list that have numbers instead of bullets; lists of one shape share them."""
    if numbering is None:
        return {}
    shapes: dict[str, dict[str, None]] = {}
    for shape in numbering.iter(f"{W}abstractNum"):
        depths = shapes.setdefault(shape.get(f"{W}abstractNumId") or "", {})
        for level in shape.iterchildren(f"{W}lvl"):
            depth = level.get(f"{W}ilvl") or ""
            if value(level, "numFmt") in ("bullet", "none"):
                depths.pop(depth, None)
            else:
                depths[depth] = None
    return {
        listed.get(f"{W}numId") or "": shapes.get(value(listed, "abstractNumId"), {})
        for listed in numbering.iter(f"{W}num")
    }


def core(archive: Archive) -> tuple[str, str]:
    name = "docProps/core.xml"
    if name not in archive:
        return "", ""
    known = {tag(node): node.text or "" for node in parse_xml(archive.read(name), name)}
    return " ".join(clean(known.get("title", "")).split()), known.get("language", "").lower()[:2]

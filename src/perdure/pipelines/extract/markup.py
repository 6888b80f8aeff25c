"""HTML to Markdown: everything that is text, in order, with headings, lists, tables, code, quotes and links.

Walks the tree without recursion, so depth costs nothing; beyond 2,048 levels libxml2 would drop the rest of the page
without a word, which is document_bomb here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

from perdure.errors import Permanent
from perdure.pipelines.extract import caps
from perdure.pipelines.extract.archive import too_much
from perdure.pipelines.extract.caps import bomb
from perdure.pipelines.extract.part import clean

if TYPE_CHECKING:
    from lxml.etree import _Element as Element

SKIPPED = frozenset(
    "script style template noscript head iframe object svg select textarea rp annotation".split()
)
_SKIPPED_IN_BOOKS = SKIPPED - {"svg"} | frozenset(
    "title desc metadata defs symbol".split()
)  # drawings have text
_AROUND = frozenset("nav dialog button".split())
_AROUND_OUTSIDE = frozenset("header footer aside".split())  # of the page, not of an article
TEXT_ITSELF = frozenset("article main section blockquote".split())
_ROLES = frozenset("navigation banner contentinfo search complementary".split())
_INLINE = frozenset(
    "a abbr acronym b bdi bdo big cite code data del dfn em font i img ins kbd label mark q rb rt ruby s samp small "
    "span strike strong sub sup time tt u var wbr input image math mi mn mo mrow msup msub msubsup mfrac msqrt mroot "
    "mtext mstyle semantics mover munder munderover mspace mfenced mpadded".split()
)
_MARKS = {"strong": "**", "b": "**", "em": "*", "i": "*", "code": "`", "kbd": "`", "samp": "`", "tt": "`"}
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_FRAMES = frozenset("li blockquote td th table tr".split())
_FRAMES_MAX = 24  # deeper lists and quotes keep their text and lose their indent
_MARKS_MAX = 24  # deeper ones lose their mark and keep their text
_PERMALINKS = frozenset("¶ # §".split())
_SPACE = re.compile(r"[ \t\r\n\f]+")
_SPACES = re.compile(r"  +")
_LINE_END = re.compile(r" ?\n ?")
_ITEM = re.compile(r"- |\d+\. ")
_BAR = re.compile(r"(?<!\\)\|")
_ESCAPED = re.compile(r"^(#{1,6} )", re.M)
#: As the parser reads them; nothing is tried twice, so both take linear time.
_ATTRIBUTE = re.compile(
    r"""[^ \t\n\f\r/>][^ \t\n\f\r/>=]*+(?:[ \t\n\f\r]*+=[ \t\n\f\r]*+(?:"[^"]*+"|'[^']*+'|[^ \t\n\f\r>]*+))?+"""
)
_TAG = re.compile(rf"<[A-Za-z][^ \t\n\f\r/>]*+(?:[ \t\n\f\r/]*+{_ATTRIBUTE.pattern})*+")


def parse_html(text: str) -> Element:
    """The page as a tree. Permanent: document_empty, document_bomb."""
    from lxml import etree

    data = text.encode(errors="replace")
    if len(data) > caps.MARKUP_BYTES_MAX:
        raise bomb(f"the page has {len(data)} bytes, at most {caps.MARKUP_BYTES_MAX} are read")
    _check_attributes(text)
    # A walk past many comments takes time by the square of their number.
    parser = etree.HTMLParser(encoding="utf-8", huge_tree=True, remove_comments=True, remove_pis=True)
    try:
        root: Element | None = etree.fromstring(data, parser)
    except (etree.ParserError, etree.XMLSyntaxError) as error:
        if too_much(str(error)):
            raise bomb(f"the page is nested too deeply: {error}") from error
        root = None
    if root is None:
        raise Permanent("document_empty", "there is nothing in this page")
    if any(too_much(entry.message or "") for entry in parser.error_log):
        raise bomb("the page is nested too deeply to be read whole")
    return root


def _check_attributes(text: str) -> None:
    """Permanent(document_bomb) for a tag with too many: the parser compares each with all others of its tag."""
    most = caps.ATTRIBUTES_MAX
    for tag in _TAG.finditer(text):
        start, end = tag.span()
        # each takes two characters at least, and the name of the tag counts as one
        if end - start > 2 * most and any(islice(_ATTRIBUTE.finditer(text, start + 1, end), most + 1, None)):
            raise bomb(f"a tag has more than {most} attributes")


def to_markdown(root: Element, *, bare: bool = False) -> str:
    """The text below `root` as Markdown; `bare` leaves out what says of itself that it only surrounds the text, and
    drawings, which are icons and charts in a page and plates in a book."""
    from lxml import etree

    left_out = SKIPPED if bare else _SKIPPED_IN_BOOKS
    writer, skipped, inside = _Writer(), None, 0
    walk = etree.iterwalk(root, events=("start", "end"))
    for event, node in walk:
        tag = _local(node.tag)
        if event == "start":
            if tag in left_out or (bare and surrounds(tag, node, inside > 0)):
                skipped = node
                walk.skip_subtree()
                continue
            inside += tag in TEXT_ITSELF
            writer.open(tag, node)
            if text := node.text:
                writer.write(text)
        else:
            if node is not skipped:
                writer.close(tag, node)
                inside -= tag in TEXT_ITSELF
            if (text := node.tail) and node is not root:
                writer.write(text)
    return clean(writer.finish())


@lru_cache(maxsize=1_000)
def _local(tag: str) -> str:
    return tag.rpartition("}")[2].lower()


def surrounds(tag: str, node: Element, inside: bool) -> bool:
    """Whether the element says that it is none of the page's text; `inside`: it is in an element that says it is."""
    if tag in _AROUND_OUTSIDE:
        return not inside
    return tag in _AROUND or node.get("role") in _ROLES or node.get("hidden") is not None


class _Frame:
    """Blocks that are gathered before they are put together: of a list item, a quote, a cell, a row, a table."""

    def __init__(self, tag: str, marker: str = "") -> None:
        self.tag = tag
        self.marker = marker
        self.blocks: list[str] = []
        self.inline: list[str] = []
        self.flushes = 0


class _Writer:
    def __init__(self) -> None:
        self._frames = [_Frame("root")]
        self._marks: list[tuple[_Frame, int, int]] = []
        self._lists: list[int] = []  # next number of each open list, 0 for bullets
        self._pre = 0
        self._marked: tuple[_Frame, int, str] | None = None  # the last mark: where, and what is in it

    def write(self, text: str) -> None:
        frame = self._frames[-1]
        if self._marked is not None and text[:1].isalnum():
            marked, place, plain = self._marked
            if marked is frame and place == len(frame.inline) - 1 and plain[-1:].isalnum():
                frame.inline[place] = plain  # the word goes on: the mark would cut it apart
        self._marked = None
        frame.inline.append(text if self._pre else _SPACE.sub(" ", text))

    def open(self, tag: str, node: Element) -> None:
        frame = self._frames[-1]
        if tag == "br":
            frame.inline.append("\n")
        elif tag == "img":
            self.write(node.get("alt") or "")
        elif tag in _MARKS or tag == "a":
            self._marks.append((frame, frame.flushes, len(frame.inline)))
        elif tag not in _INLINE:
            self._flush()
            if tag in {"ul", "ol"}:
                self._lists.append(1 if tag == "ol" else 0)
            elif tag == "pre":
                self._pre += 1
            elif tag in _FRAMES and len(self._frames) < _FRAMES_MAX:
                self._frames.append(_Frame(tag, self._marker() if tag == "li" else ""))

    def close(self, tag: str, node: Element) -> None:
        if tag in _MARKS or tag == "a":
            self._wrap(tag, node.get("href") or "")
        elif tag in _HEADINGS:
            self._flush(lambda text: f"{'#' * _HEADINGS[tag]} {_SPACE.sub(' ', text)}")
        elif tag == "pre":
            self._pre -= 1
            self._flush(_fence)
        elif tag not in _INLINE and tag != "br":
            self._flush()
            if tag in {"ul", "ol"}:
                self._lists.pop()
            elif tag in _FRAMES and self._frames[-1].tag == tag:
                done = self._frames.pop()
                if block := _assemble(done):
                    self._frames[-1].blocks.append(block)

    def finish(self) -> str:
        while len(self._frames) > 1:
            self._flush()
            done = self._frames.pop()
            self._frames[-1].blocks.append(_assemble(done))
        self._flush()
        return _join(self._frames[0].blocks)

    def _marker(self) -> str:
        if not self._lists or self._lists[-1] == 0:
            return "- "
        self._lists[-1] += 1
        return f"{self._lists[-1] - 1}. "

    def _wrap(self, tag: str, href: str) -> None:
        frame, flushes, start = self._marks.pop()
        if frame is not self._frames[-1] or frame.flushes != flushes or self._pre:
            return  # a block ended within: the mark would span it
        if len(self._marks) >= _MARKS_MAX:
            return  # each puts all that is inside it together once more
        inner = "".join(frame.inline[start:])
        core = inner.strip()
        if core in _PERMALINKS and tag == "a":
            del frame.inline[start:]
            return
        if tag == "a":
            self._marked = None
            marked = f"[{core}]({href})" if href.startswith(("http://", "https://", "mailto:")) else core
            if href.removeprefix("mailto:") == core:
                marked = f"<{core}>"
        else:
            mark = _MARKS[tag]
            within = bool(start) and frame.inline[start - 1][-1:].isalnum() and inner[:1].isalnum()
            marked = core if mark in core or (within and mark != "`") else f"{mark}{core}{mark}"
            if mark != "`":
                self._marked = (frame, start, inner)
        if core:
            frame.inline[start:] = [inner.replace(core, marked, 1) if inner != core else marked]

    def _flush(self, form: Callable[[str], str] | None = None) -> None:
        frame = self._frames[-1]
        frame.flushes += 1
        self._marked = None
        text = "".join(frame.inline)
        frame.inline.clear()
        if form is not _fence and not self._pre:
            text = text.strip()
            if "  " in text:
                text = _SPACES.sub(" ", text)
            if "\n" in text:
                text = _LINE_END.sub("\n", text)
        if not text.strip():
            return
        if form is not None:
            frame.blocks.append(form(text))
        else:
            frame.blocks.append(_ESCAPED.sub(r"\\\1", text))


def _fence(text: str) -> str:
    text = text.strip("\n").rstrip()
    fence = "```" if "```" not in text else "~~~~"
    return f"{fence}\n{text}\n{fence}"


def _assemble(frame: _Frame) -> str:
    if frame.tag in {"td", "th"}:
        text = _SPACE.sub(" ", " ".join(frame.blocks)).replace("|", "\\|")
        return f" {text} |"
    if frame.tag == "tr":
        return f"|{''.join(frame.blocks)}" if frame.blocks else ""
    text = _join(frame.blocks)
    if frame.tag == "blockquote":
        return "\n".join(f"> {line}".rstrip() for line in text.split("\n")) if text else ""
    if frame.tag == "li":
        indent = " " * len(frame.marker)
        lines = text.split("\n")
        return frame.marker + "\n".join(
            [lines[0], *(f"{indent}{line}" if line else "" for line in lines[1:])]
        )
    return text


def _join(blocks: list[str]) -> str:
    # Items of a list and rows of a table stand on consecutive lines, everything else apart.
    out: list[str] = []
    table = was_item = False
    for block in blocks:
        row = block.startswith("|") and "\n" not in block
        item = _ITEM.match(block[:12]) is not None
        if out:
            tight = (row and table) or (item and was_item)
            out[-1] += "\n" if tight else "\n\n"
        out.append(block)
        if row and not table:
            cells = max(1, len(_BAR.findall(block)) - 1)
            out[-1] += "\n|" + " --- |" * cells
        table, was_item = row, item
    return "".join(out)

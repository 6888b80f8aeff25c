"""How much of a page may be something else than its text, by the page's own names: a bound, not an opinion."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from perdure.core.frozen import frozen
from perdure.pipelines.extract.markup import SKIPPED, TEXT_ITSELF, surrounds
from perdure.pipelines.extract.part import count_words

if TYPE_CHECKING:
    from lxml.etree import _Element as Element

_TITLES = frozenset("h1 h2 h3 h4 h5 h6".split())
_TAGS = frozenset("aside footer header form label".split())
_NAMES = re.compile(
    r"nav|menu|side|foot|head|banner|bar|crumb|toc|index|page[rs]|prev|next|search|login|comment|disqus|discuss|repl"
    r"|related|recommend|also|more|teaser|feed|tags|shar|social|subscribe|newsletter|widget|promo|sponsor|advert"
    r"|(?<![a-z])ads?(?![a-z])|cookie|consent|privacy|popup|modal|overlay|hidden|copyright",
    re.I,
)
_COMMENTS = frozenset("comment comments".split())
_PLAIN = frozenset(
    "nav navbar navigation menu sidebar breadcrumb breadcrumbs cookie cookies consent related "
    "recommended share sharing social newsletter subscribe promo advert advertisement ad ads sponsored popup modal "
    "footer teaser teasers pagination".split()
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_ID_WORD = re.compile(r"[a-z0-9]+")
_BLOCKS = frozenset("div section ul ol table aside form details footer".split())
_UNSEEN = re.compile(r"display:\s*none", re.I)
_TITLE_AS_ID = re.compile(r"[A-Z].*[-_]")
_SITE = re.compile(
    r"shar(?:e|ing)|social|comment|newsletter|cookie|consent|related|advert|sponsor|widget|subscribe|twitter|facebook"
    r"|disqus|sidebar|breadcrumb|(?<![a-z])ads?(?![a-z])|author|byline|(?<![a-z])post(?![a-z])|entry|login|menu|logo",
    re.I,
)
_SITE_NAMES_MIN = 8
_HEADERS = frozenset("header footer aside".split())
_NO_PROSE = SKIPPED | {"a", "nav", "button", "form"}
_LARGE_MAX = 8  # each is counted and looked into; without an end a page of nested ones would take hours
_NAMES_CHARS_MAX = 1_000


Titles = dict["Element", frozenset[str]]


@frozen
class Around:
    """What may surround the text of a page, and the parts of it that plainly say so."""

    words: int
    parts: list[Element]
    comments: list[Element]  # which are the text in a forum


def look_around(root: Element, words: int) -> Around:
    """Words in links and in parts named as what surrounds a text: of the page's `words`, no more are dispensable.

    A part that holds more than half of the words surrounds nothing, whatever its name (`class="with-sidebar"`). What is
    left out of every page is none of its words.
    """
    from lxml import etree

    count = large = inside = 0
    parts: list[Element] = []
    comments: list[Element] = []
    titles = _first_titles(root)
    walk = etree.iterwalk(root, events=("start", "end"))
    for event, node in walk:
        if event == "end":
            inside -= node.tag in TEXT_ITSELF
            continue
        inside += node.tag in TEXT_ITSELF
        if node.tag in SKIPPED or surrounds(node.tag, node, inside > 0):
            walk.skip_subtree()
        elif _named_so(node, titles):
            own = _words_in(node)
            if own > words // 2 and large < _LARGE_MAX:
                large += 1
            else:
                count += own
                if _says_so(node, _PLAIN, titles):
                    parts.append(node)
                elif _says_so(node, _COMMENTS, titles):
                    comments.append(node)
                walk.skip_subtree()
    return Around(count, parts, comments)


def is_of_a_site(root: Element) -> bool:
    """Whether the page names things that sites put around a text, as a manual or a report does not."""
    named = 0
    for node in root.iter():
        if node.attrib and _SITE.search(f"{node.get('class', '')} {node.get('id', '')}"[:_NAMES_CHARS_MAX]):
            named += 1
            if named == _SITE_NAMES_MIN:
                return True
    return False


def keep_text_in_headers(root: Element) -> None:
    """Make a plain part of a header, footer or aside that holds most of the page's prose: then that is the text."""
    from lxml import etree

    if next(root.iter(*_HEADERS), None) is None:
        return
    counts: list[tuple[Element, int]] = []
    opened = [0]  # prose in each header that is open, the page first
    walk = etree.iterwalk(root, events=("start", "end"))
    for event, node in walk:
        if event == "start":
            if node.tag in _NO_PROSE:
                walk.skip_subtree()
                continue
            if node.tag in _HEADERS:
                opened.append(0)
            opened[-1] += count_words(node.text or "")
            continue
        if node.tag in _HEADERS:
            own = opened.pop()
            opened[-1] += own
            counts.append((node, own))
        opened[-1] += count_words(node.tail or "")
    for node, own in counts:
        if own > opened[0] // 2:
            node.tag = "div"


def _words_in(node: Element) -> int:
    code = sum(count_words(below.text or "") for below in node.iter("script", "style"))
    return count_words(" ".join(map(str, node.itertext()))) - code


def _first_titles(root: Element) -> Titles:
    """The words of the first heading within each element, read once and not for each element around it."""
    found: Titles = {}
    for heading in root.iter(*_TITLES):
        words: frozenset[str] | None = None
        for above in heading.iterancestors():
            if above in found:
                break
            words = _title_words(heading) if words is None else words
            found[above] = words
    return found


def _title_words(heading: Element) -> frozenset[str]:
    text, room = [], _NAMES_CHARS_MAX
    for piece in heading.itertext():
        text.append(str(piece)[:room])
        room -= len(text[-1])
        if room <= 0:
            break
    return frozenset(_ID_WORD.findall(" ".join(text).lower()))


def _says_so(node: Element, words: frozenset[str], titles: Titles) -> bool:
    """Whether one of these words is in its names; a part with the page's title in it surrounds nothing."""
    if node.tag not in _BLOCKS:
        return False
    found = not words.isdisjoint(word.lower() for word in _WORD.findall(_names(node, titles)))
    return found and next(node.iter("h1", "main"), None) is None


def _names(node: Element, titles: Titles) -> str:
    """Its class and its id; headings and sections have their title as their id, which says nothing."""
    id_, class_ = (node.get(key, "")[:_NAMES_CHARS_MAX] for key in ("id", "class"))
    if not id_ or node.tag in _TITLES or _TITLE_AS_ID.match(id_) or not _NAMES.search(id_):
        return class_
    words = set(_ID_WORD.findall(id_.lower()))
    if len(words) > 1 or node.tag == "section" or "section" in class_:
        title = titles.get(node)
        if title is not None and words <= title:
            return class_
    return f"{class_} {id_}"


def _named_so(node: Element, titles: Titles) -> bool:
    if node.tag == "a":
        return "href" in node.attrib
    if node.tag in _TAGS:
        return True
    if not (given := node.attrib):
        return False
    return (
        _NAMES.search(_names(node, titles)) is not None
        or given.get("aria-hidden") == "true"
        or _UNSEEN.search(given.get("style", "")[:_NAMES_CHARS_MAX]) is not None
    )

"""How much of a page may be something else than its text, by the page's own names: a bound, not an opinion."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

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
_UNSEEN = re.compile(r"display:\s*none", re.I)
_TITLE_AS_ID = re.compile(r"[A-Z].*[-_]")
_LARGE_MAX = 8  # each is counted and looked into; without an end a page of nested ones would take hours
_NAMES_CHARS_MAX = 1_000


def words_around(root: Element, words: int) -> int:
    """Words in links and in parts named as what surrounds a text: of the page's `words`, no more are dispensable.

    A part that holds more than half of the words surrounds nothing, whatever its name (`class="with-sidebar"`). What is
    left out of every page is none of its words.
    """
    from lxml import etree

    count = large = inside = 0
    walk = etree.iterwalk(root, events=("start", "end"))
    for event, node in walk:
        if event == "end":
            inside -= node.tag in TEXT_ITSELF
            continue
        inside += node.tag in TEXT_ITSELF
        if node.tag in SKIPPED or surrounds(node.tag, node, inside > 0):
            walk.skip_subtree()
        elif _named_so(node):
            own = _words_in(node)
            if own > words // 2 and large < _LARGE_MAX:
                large += 1
            else:
                count += own
                walk.skip_subtree()
    return count


def _words_in(node: Element) -> int:
    code = sum(count_words(below.text or "") for below in node.iter("script", "style"))
    return count_words(" ".join(map(str, node.itertext()))) - code


def _named_so(node: Element) -> bool:
    if node.tag == "a":
        return "href" in node.attrib
    if node.tag in _TAGS:
        return True
    if not (given := node.attrib):
        return False
    id_, class_ = given.get("id", ""), given.get("class", "")
    # Headings and sections have their title as their id.
    names = class_ if node.tag in _TITLES or _TITLE_AS_ID.match(id_) else f"{class_} {id_}"
    return (
        _NAMES.search(names[:_NAMES_CHARS_MAX]) is not None
        or given.get("aria-hidden") == "true"
        or _UNSEEN.search(given.get("style", "")[:_NAMES_CHARS_MAX]) is not None
    )

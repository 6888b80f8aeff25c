"""How much of a page may be something else than its text, by the page's own names: a bound, not an opinion."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from perdure.pipelines.extract.markup import ROLES, SKIPPED
from perdure.pipelines.extract.part import count_words

if TYPE_CHECKING:
    from lxml.etree import _Element as Element

_TITLES = frozenset("h1 h2 h3 h4 h5 h6".split())
_TAGS = frozenset("nav aside footer header form button label".split())
_NAMES = re.compile(
    r"nav|menu|side|foot|head|banner|bar|crumb|toc|index|page[rs]|prev|next|search|login|comment|disqus|discuss|repl"
    r"|related|recommend|also|more|teaser|feed|tags|shar|social|subscribe|newsletter|widget|promo|sponsor|advert"
    r"|(?<![a-z])ads?(?![a-z])|cookie|popup|modal|overlay|hidden|copyright",
    re.I,
)
_LARGE_MAX = 8  # each is counted and looked into; without an end a page of nested ones would take hours


def words_around(root: Element, words: int) -> int:
    """Words in links and in parts named as what surrounds a text: of the page's `words`, no more are dispensable.

    A part that holds more than half of the words surrounds nothing, whatever its name (`class="with-sidebar"`).
    """
    count, large, open_ = 0, 0, [root]
    while open_:
        node = open_.pop()
        if node.tag in SKIPPED:
            continue
        if _named_so(node):
            own = count_words(" ".join(map(str, node.itertext())))
            if own <= words // 2 or large == _LARGE_MAX:
                count += own
                continue
            large += 1
        open_.extend(node)
    return count


def _named_so(node: Element) -> bool:
    if node.tag == "a":
        return "href" in node.attrib
    if node.tag in _TAGS:
        return True
    if not (given := node.attrib):
        return False
    id_ = given.get("id", "")
    # Headings and sections have their title as their id.
    names = (
        given.get("class", "") if node.tag in _TITLES or id_[:1].isupper() else f"{given.get('class')} {id_}"
    )
    return given.get("role") in ROLES or _NAMES.search(names) is not None

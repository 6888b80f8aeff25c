"""How much one document may unfold to. Over a cap it is `document_bomb`, long before the process limit is reached.

Real documents stay far below: the largest stream of 30 manuals has 3 MB, the fullest page 1,400 text operators.
What slips through (a PDF whose streams are encrypted, say) is ended by the limits of the cell it runs in.
"""

from __future__ import annotations

from perdure.errors import Permanent

MIB = 1 << 20

#: Archives (EPUB, DOCX): members, one member, everything that is read, and how much a large member may have shrunk.
MEMBERS_MAX = 10_000
MEMBER_BYTES_MAX = 64 * MIB
ARCHIVE_BYTES_MAX = 512 * MIB
RATIO_MAX = 100
RATIO_FROM_BYTES = 8 * MIB  # small members may shrink as they like

#: Parts: an EPUB with more chapters is none, text with more sections is cut at every few of them.
PARTS_MAX = 10_000

#: PDF: pages, the streams that one page draws, and its text.
PAGES_MAX = 50_000
STREAM_BYTES_MAX = 128 * MIB
PAGE_BYTES_MAX = 128 * MIB
PAGE_SHOWS_MAX = 400_000  # operators that show text; each costs about a kilobyte
PAGE_CHARS_MAX = 5_000_000
OPEN_STREAMS_MAX = 1_000  # streams that begin before one ends; such a PDF is damaged

#: Markup and text. libxml2 gives up below 2,048 levels and would drop the rest without a word.
MARKUP_BYTES_MAX = 64 * MIB
ATTRIBUTES_MAX = 10_000  # of one HTML tag: the parser's time grows with the square of their number
TEXT_BYTES_MAX = 256 * MIB
AROUND_ELEMENTS_MAX = 200_000  # of a page that is looked at more than once
MAIN_TEXT_ELEMENTS_MAX = 20_000  # pages with more are taken whole: finding their main text would take minutes


def bomb(what: str) -> Permanent:
    """Permanent(document_bomb): `what` says which cap was passed."""
    return Permanent("document_bomb", what)

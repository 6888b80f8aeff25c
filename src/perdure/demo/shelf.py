"""The demo's documents: essays that come with the package, bound in several formats, and what is to become of each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from perdure.demo import binding, pdf

#: The book whose pages one can watch being saved.
BOOK = "things-that-last.pdf"
_CHAPTERS = ("lighthouse", "cathedral", "tides", "bookbinding", "walls", "rope", "pendulum")
_JOURNEYS = {"Letters": "letters", "Seeds": "seeds", "Sourdough": "sourdough"}


@dataclass(frozen=True, slots=True)
class Book:
    """A document of the demo.

    `busy` answers with 503 come before it is handed out: it is fetched from the demo's own server. `dead` is how the
    reason begins for which it is set aside; none if it is to be done. `attempts` is what its own trouble costs.
    """

    name: str
    data: bytes
    parts: int = 1
    word: str = "part"  # for one of its parts
    online: bool = False
    busy: int = 0
    dead: str = ""
    about: str = ""  # what is wrong with it
    attempts: int = 1


@cache
def books() -> tuple[Book, ...]:
    """In the order in which they are handed in."""
    pages = [part for name in _CHAPTERS for part in binding.paragraphs(_text(f"{name}.txt"))]
    last = pdf.book("Things that last", pages)
    journeys = {heading: _text(f"{name}.txt") for heading, name in _JOURNEYS.items()}
    archives = _text("archives.txt")
    return (
        Book(BOOK, last, len(pages), "page"),
        Book("queues.html", binding.page("On queues", _text("queues.txt")), online=True, busy=2, attempts=3),
        Book(
            "bomb.pdf",
            pdf.bomb(),
            1,
            "page",
            dead="crashed:",
            about="8 kB that unpack to 3 GiB",
            attempts=2,
        ),
        Book("three-journeys.epub", binding.epub("Three journeys", journeys), 3, "chapter"),
        Book(
            "torn.pdf",
            last[: len(last) // 3],
            len(pages),
            "page",
            dead="document_corrupt",
            about="a third of a PDF",
        ),
        Book("archives.docx", binding.docx(archives), 4, "section"),
        Book("leases.md", _text("leases.md").encode(), 4, "section", online=True),
        Book("catalogue.txt", _text("catalogue.txt").encode()),
        Book("fog-horn.eml", binding.mail(_text("fog.txt"))),
    )


def _text(name: str) -> str:
    return files("perdure.demo").joinpath("texts", name).read_text("utf-8")

"""What can be done with the documents now: asked for by words and by meaning, and connected with each other."""

from __future__ import annotations

from dataclasses import dataclass

from perdure.core.words import words
from perdure.demo.accounts import Account
from perdure.demo.play import Play
from perdure.demo.shelf import BOOK
from perdure.pipelines.embed import embedder
from perdure.store.records import Hit


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, and where the answer stands."""

    query: str
    document: str
    page: int | None = None
    by_meaning: bool = False  # no word of the query stands in the answer


QUESTIONS = (
    Question("clockwork winding", BOOK, page=5),
    Question("undeliverable mail", "three-journeys.epub", by_meaning=True),
)

#: Two documents with passages about the same.
CONNECTED = ("fog-horn.eml", BOOK)


@dataclass(frozen=True, slots=True)
class Answer:
    """The best passage that was found."""

    question: Question
    hit: Hit | None
    right: bool


@dataclass(frozen=True, slots=True)
class Place:
    """Where a passage begins."""

    document: str
    anchor: str

    def __str__(self) -> str:
        return f"{self.document}, {self.anchor.replace('=', ' ')}"


@dataclass(frozen=True, slots=True)
class Link:
    """Two passages about the same."""

    one: Place
    other: Place
    score: float


def knows_meaning() -> bool:
    """Whether the vectors here are of meaning; otherwise texts are alike if they share words."""
    return not embedder().name.startswith("lexical")


async def answers(play: Play) -> list[Answer]:
    """To every question that can be asked here."""
    asked = (question for question in QUESTIONS if knows_meaning() or not question.by_meaning)
    return [await _answer(play, question) for question in asked]


async def _answer(play: Play, question: Question) -> Answer:
    found = await play.app.search(question.query, org=play.org, limit=1)
    if not found:
        return Answer(question, None, False)
    hit = found[0]
    right = (hit.name, hit.page) == (question.document, question.page)
    if question.by_meaning:
        chunks = await play.app.chunks(hit.document_id, play.org)
        text = next(chunk.text for chunk in chunks if chunk.id == hit.chunk_id)
        right = right and not set(words(question.query)) & set(words(text))
    return Answer(question, hit, right)


def searched(found: list[Answer]) -> Account:
    """Whether each question was answered as it should be."""
    wrong = [answer.question.query for answer in found if not answer.right]
    asked = "1 question" if len(found) == 1 else f"{len(found)} questions, each"
    because = f"{asked} answered with the right passage"
    return Account(
        "all found", not wrong, because if not wrong else f"not as it should be: {', '.join(wrong)}"
    )


async def links(play: Play) -> list[Link]:
    """Passages of different documents that are about the same, the closest pair first; each pair once."""
    places: dict[str, Place] = {}
    for name, id_ in play.ids.items():
        places |= {chunk.id: Place(name, chunk.anchor) for chunk in await play.app.chunks(id_, play.org)}
    best: dict[frozenset[str], Link] = {}
    for id_ in play.ids.values():
        for found in await play.app.connections(id_, org=play.org):
            ends = frozenset((found.chunk_id, found.other_id))
            if ends <= places.keys():
                best[ends] = Link(places[found.chunk_id], places[found.other_id], found.score)
    return sorted(best.values(), key=lambda link: -link.score)


def connected(found: list[Link]) -> Account:
    """Whether the letter from a lighthouse was connected with the pages on lighthouses."""
    pairs = {frozenset((link.one.document, link.other.document)) for link in found}
    right = frozenset(CONNECTED) in pairs
    because = f"{len(found)} between passages of different documents"
    return Account("connections", right, because if right else f"none between {' and '.join(CONNECTED)}")

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


@dataclass(frozen=True, slots=True)
class Answer:
    """The best passage that was found."""

    question: Question
    hit: Hit | None
    right: bool


@dataclass(frozen=True, slots=True)
class Link:
    """Two documents with passages about the same."""

    one: str
    other: str
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
    because = f"{len(found)} questions, each answered with the right passage"
    return Account(
        "all found", not wrong, because if not wrong else f"not as it should be: {', '.join(wrong)}"
    )


async def links(play: Play) -> list[Link]:
    """Pairs of documents that are connected, the closest first."""
    names = {id_: name for name, id_ in play.ids.items()}
    best: dict[tuple[str, str], float] = {}
    for id_, name in names.items():
        for connection in await play.app.connections(id_, org=play.org):
            pair = sorted((name, names.get(connection.other_document_id, connection.other_document_id)))
            best[pair[0], pair[1]] = max(connection.score, best.get((pair[0], pair[1]), 0.0))
    return [Link(*pair, score) for pair, score in sorted(best.items(), key=lambda item: -item[1])]

"""States in the words of other systems, for those who moved from one and whose programs wait for its words."""

from __future__ import annotations

from perdure.core.model import State

PERDURE = "perdure"

#: By system: its word for each of our states. Every state that has ended has a word that ends a wait there.
WORDS: dict[str, dict[str, str]] = {
    PERDURE: {state: str(state) for state in State},
    # what a job of BullMQ answers as its state
    "bullmq": {
        State.QUEUED: "waiting", State.PARKED: "waiting", State.RUNNING: "active", State.WAITING: "delayed",
        State.HELD: "delayed", State.DONE: "completed", State.DEAD: "failed", State.CANCELLED: "failed",
    },
    # what the rows of documents beside such a queue have as their status
    "documents": {
        State.QUEUED: "queued", State.PARKED: "queued", State.RUNNING: "fetching", State.WAITING: "queued",
        State.HELD: "queued", State.DONE: "done", State.DEAD: "failed", State.CANCELLED: "failed",
    },
    # what the rows of images have as their status
    "images": {
        State.QUEUED: "pending", State.PARKED: "pending", State.RUNNING: "processing", State.WAITING: "pending",
        State.HELD: "pending", State.DONE: "completed", State.DEAD: "failed", State.CANCELLED: "failed",
    },
}  # fmt: skip

#: Every word that says that a document has ended.
ENDED = frozenset(
    table[state] for table in WORDS.values() for state in (State.DONE, State.DEAD, State.CANCELLED)
)


def said(state: str, words: str | None) -> str:
    """The state in the words of that system. Raises: ValueError, which lists the systems."""
    if words is None:
        return state
    if words not in WORDS:
        raise ValueError(f"there are no words of {words!r}; one of: {', '.join(WORDS)}")
    return WORDS[words][state]


def states_of(word: str, words: str | None) -> frozenset[State]:
    """The states that this word means in that system; none if it is no word there."""
    table = WORDS.get(words or "", {})
    return frozenset(State(state) for state, known in table.items() if known == word.strip().lower())

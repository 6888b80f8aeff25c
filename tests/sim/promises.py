"""What Perdure promises, each under a short name. Every one has a planted bug that breaks it, see `mutations`."""

from __future__ import annotations

PROMISES = {
    "acknowledged": "what was answered to a client or a worker is there and stays",
    "lease": "one live lease: new token, claims rise by one, taken back only if it is over or its worker is gone",
    "fence": "only who holds the lease at that moment writes for a job",
    "budget": "charged claims stay within the attempts, claims within the cap, and nobody pays for another",
    "immutable": "a saved output or item neither changes nor goes nor is made again",
    "progress": "within a generation states and stages only move on",
    "once": "effects, hooks and follow-ups happen exactly once per generation",
    "whole": "a document and its main job begin, end and begin again in one transaction",
    "orphan": "no row without what it belongs to",
    "early": "nothing runs before it is due",
    "service": "nothing is claimed while its queue is paused or its lane is down",
    "limit": "no more run at once than the limit of their key allows",
    "alone": "a suspect runs in a cell of its own, and the second crash there is its last",
    "reason": "the dead have a reason, and it is their own",
    "history": "every claim that ended and every act of an operator is written down once",
    "counters": "what is counted is what is there",
    "indexed": "a document has the chunks of its last save of them and the connections that its newest follow-up found",
    "fair": "first come, first served within an organisation, and no organisation starves another",
    "size": "a large document waits in lanes of large ones from its first stage to its last",
    "told": "what is handed over has its event until that is published and its lease begins; a death there is told",
    "feed": "the feed tells what became of a document in the transaction that did it, once, and nothing else",
    "sound": "no part of the engine ends by an error that nobody expects",
    "converges": "once the faults have stopped everything ends, and ends as it must",
}


class Violation(AssertionError):
    """A promise was broken."""

    def __init__(self, promise: str, text: str) -> None:
        assert promise in PROMISES
        super().__init__(f"{promise}: {text}")
        self.promise, self.text = promise, text

"""Stages in processes of their own whose calls fail for good."""

from __future__ import annotations

from perdure import Document, Pipeline
from perdure.calls import Policy

policy = Policy("refusing-service")
letters = Pipeline("letters")


class Unpicklable(Exception):
    """As clients raise it: it holds a connection and cannot leave the process."""

    def __init__(self) -> None:
        super().__init__("no such key")
        self.status_code = 401
        self.connection = lambda: None


def refuse() -> str:
    raise Unpicklable


@letters.stage(isolate=True)
def read(doc: Document) -> str:
    return policy.call(refuse)

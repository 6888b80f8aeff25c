"""Stages that make requests, as a process of its own can find them."""

from __future__ import annotations

from perdure import Document, Permanent, Pipeline
from perdure.core.scope import WORK, Work


def work() -> Work:
    """The work in hand, which there must be."""
    found = WORK.get()
    assert found is not None
    return found


def request(name: str, times: int = 1) -> None:
    """Make requests, as far as the ledger is concerned."""
    made = work().requests
    made[name] = made.get(name, 0) + times


calls = Pipeline("calls", attempts=2)


@calls.stage(needs=["ocr"])
def read(doc: Document) -> str:
    request("ocr", 2)
    return f"{work().stage} {work().attempt} {work().needs}"


@calls.stage(isolate=True, needs=["openai"])
def describe(doc: Document, read: str) -> str:
    request("openai")
    if doc.text == "bad":
        raise Permanent("refused", "by the service")
    return f"{work().stage} {work().document_id} {work().needs}"


@calls.stage
async def tell(doc: Document, describe: str) -> str:
    request("openai")
    return f"{work().stage} {work().org} {work().pipeline} {work().needs}"

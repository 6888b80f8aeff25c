"""What the worker of the metrics' tests works on: a stage that needs a service, one in its own process, failures."""

from __future__ import annotations

import os
import signal

from perdure import Context, Document, Perdure, Permanent, Pipeline, Transient
from perdure.calls import FullJitter, Policy

shop = Pipeline("shop", backoff_s=0.05)
scale = Policy("scale", retries=2, backoff=FullJitter(0.01, 0.02))
_asked: set[str] = set()


@scale
def weighed(text: str) -> int:
    """The scale hesitates once for each parcel that is heavy."""
    if text.startswith("heavy") and text not in _asked:
        _asked.add(text)
        raise ConnectionResetError("try again")
    return len(text)


@shop.stage(needs=["scale"])
def weigh(doc: Document, ctx: Context) -> int:
    if doc.text.startswith("dies"):
        raise Permanent("too_heavy", "nobody can lift it")
    if doc.text.startswith("kills") and ctx.attempt == 1 and not os.path.exists("killed"):
        open("killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return weighed(doc.text)


@shop.stage(isolate=True)
def wrap(doc: Document, weigh: int) -> int:
    return weighed("heavy in a cell: " + doc.text)


@shop.stage
def ship(doc: Document, wrap: int, ctx: Context) -> int:
    if doc.text.startswith("stumbles") and ctx.attempt < 3:
        raise Transient("not today")
    return wrap


app = Perdure(pipelines=[shop])

"""An app whose stages say every secret that they can find, each in another way."""

from __future__ import annotations

import os

import httpx2

from perdure import Context, Document, Perdure, Permanent, Pipeline
from perdure.settings import ADDRESSES, SECRETS, SECRETS_OF_OTHERS, current, variable

leaking = Pipeline("leaking", attempts=1)


@leaking.stage
def leak(doc: Document, ctx: Context) -> int:
    values = {
        name: os.environ.get(name, "")
        for name in (*map(variable, (*SECRETS, *ADDRESSES)), *SECRETS_OF_OTHERS)
    }
    value = values[doc.text.split()[0]]
    ctx.log.warning("what is set: %s", value)
    ctx.log.error("as facts", extra={"facts": {"settings": [value, {"more": value}], "all": repr(current())}})
    match doc.text.split()[1]:
        case "permanent":
            raise Permanent("leaked", f"cannot use {value!r}")
        case "header":
            httpx2.get("http://127.0.0.1:1/", headers={"Authorization": f"Bearer {value}\n"})
        case "url":
            httpx2.get(value)
    raise RuntimeError(f"{value} failed")


app = Perdure(pipelines=[leaking])

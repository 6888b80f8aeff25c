"""The pipeline of `test_forbidding`: each document asks a service once."""

from __future__ import annotations

import os
from typing import Any

import openai

from perdure import Document, Perdure, Pipeline
from perdure.calls import FullJitter, Policy
from tests.faults.stages import STORE_VARIABLE

SERVICE_VARIABLE = "PERDURE_TEST_SERVICE"

books = Pipeline("books")
policy = Policy("openai", backoff=FullJitter(0.01, 0.02))


@books.stage(needs=["openai"])
async def ask(doc: Document) -> str:
    hello: Any = [{"role": "user", "content": doc.text}]
    async with openai.AsyncOpenAI(base_url=os.environ[SERVICE_VARIABLE], api_key="any") as client:
        policy.bind(client)
        answer = await policy.acall(client.chat.completions.create, model="m", messages=hello)
    return str(answer.choices[0].message.content)


app = Perdure(os.environ.get(STORE_VARIABLE, "sqlite:///unused.db"), pipelines=[books])

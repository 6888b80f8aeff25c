"""The loads of `tenants.py`, each a process of its own: `python benchmarks/tenants_load.py polite|hostile FACTS`.

`polite` prints a JSON object of samples when it ends, `hostile` (`tenants_harm.py`) one of counts. Both end by
themselves, and speak to loopback only.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import httpx2

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.pipelines.extract import made

POLLS_S = (0.01, 0.02, 0.03, 0.05)  # between looks at a document; the last one again and again
DONE_S = 30.0  # that a document or an answer is waited for; one that fails or comes later counts as this long
Samples = dict[str, list[float]]


class Polite:
    """An organisation that adds a document, waits for it, searches, and begins again at a steady pace."""

    def __init__(self, url: str, key: str, number: int, pace_s: float, from_s: float, until_s: float) -> None:
        self.samples: Samples = {name: [] for name in ("add", "done", "search", "status", "lag")}
        self.errors: Counter[str] = Counter()
        self._number, self._pace_s = number, pace_s
        self._from_s, self._until_s = from_s, until_s  # what begins before is not measured
        self._client = httpx2.AsyncClient(
            base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=DONE_S
        )

    async def run(self) -> None:
        begun_s = time.monotonic() + self._pace_s * self._number / 19  # not all at once
        cycles: list[asyncio.Task[None]] = []
        cycle = 0
        while (at_s := begun_s + cycle * self._pace_s) < self._until_s:
            await asyncio.sleep(at_s - time.monotonic())
            self.samples["lag"].append(time.monotonic() - at_s)
            if at_s < self._from_s:
                cycles.append(asyncio.create_task(self._cycle(cycle, {name: [] for name in self.samples})))
            else:
                cycles.append(asyncio.create_task(self._cycle(cycle, self.samples)))
            cycle += 1
        await asyncio.gather(*cycles)
        await self._client.aclose()

    async def _cycle(self, cycle: int, samples: Samples) -> None:
        began_s = time.monotonic()
        done_s = DONE_S
        added = await self._timed(samples, "add", "POST", "/v3/documents", **self._document(cycle))
        if added is not None and await self._done(samples, added["id"], began_s + DONE_S):
            done_s = time.monotonic() - began_s
        samples["done"].append(done_s)
        await self._timed(samples, "search", "GET", f"/v3/search?q=organisation+{self._number}")

    async def _done(self, samples: Samples, document: str, until_s: float) -> bool:
        for pause_s in chain(POLLS_S, repeat(POLLS_S[-1])):
            found = await self._timed(samples, "status", "GET", f"/v3/documents/{document}")
            if found is not None and found["finished_at"] is not None:
                if found["status"] != "done":
                    self.errors[f"ended {found['status']}"] += 1
                return bool(found["status"] == "done")
            if time.monotonic() > until_s:
                break
            await asyncio.sleep(pause_s)
        self.errors["not done in time"] += 1
        return False

    def _document(self, cycle: int) -> dict[str, Any]:
        words = f"{os.urandom(8).hex()} {made.prose(120, seed=self._number * 1000 + cycle)}"  # or it is known already
        name = f"organisation {self._number} document {cycle}"
        if cycle % 4 == 3:
            kind = (
                ("page.html", made.page(name, {"Part": words}))
                if cycle % 8 == 3
                else ("a.pdf", made.pdf([words]))
            )
            return {"files": {"file": kind}}
        return {"json": {"text": f"{name}. {words}", "name": name}}

    async def _timed(self, samples: Samples, what: str, method: str, path: str, **more: Any) -> Any:
        began_s = time.monotonic()
        try:
            answer = await self._client.request(method, path, **more)
        except httpx2.HTTPError as error:
            self.errors[f"{what} {type(error).__name__}"] += 1
            samples[what].append(DONE_S)
            return None
        if answer.status_code >= 400:
            self.errors[f"{what} {answer.status_code}"] += 1
            samples[what].append(DONE_S)
            return None
        samples[what].append(time.monotonic() - began_s)
        return answer.json()


async def polite(facts: dict[str, Any]) -> None:
    """Run the nineteen for `seconds`."""
    print("ready", flush=True)  # everything is imported
    from_s = time.monotonic() + facts["lead_s"]
    until_s = from_s + facts["seconds"]
    own = [
        Polite(facts["url"], key, n, facts["pace_s"], from_s, until_s) for n, key in enumerate(facts["keys"])
    ]
    runs = [asyncio.create_task(one.run()) for one in own]
    await asyncio.sleep(from_s - time.monotonic())
    print("measuring", flush=True)
    await asyncio.gather(*runs)
    samples = {name: [each for one in own for each in one.samples[name]] for name in own[0].samples}
    print(json.dumps({"samples": samples, "errors": sum((one.errors for one in own), Counter())}))


if __name__ == "__main__":
    from tenants_harm import hostile

    given = json.loads(sys.argv[2])
    os.nice(given["nice"])
    asyncio.run({"polite": polite, "hostile": hostile}[sys.argv[1]](given))

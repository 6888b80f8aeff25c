"""Damaged files, read by the real readers in real cells, and an account of how each reading ended.

A reading may give a result or raise an error whose code docs/reference.md lists. Everything else is a finding: the
cell died of a signal, used more time or memory than it may, raised something else, or the worker lost its cells.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from perdure.engine.isolate import CellDoubtful, Limits, Nursery, NurseryLost
from perdure.errors import Permanent, Transient
from perdure.pipelines import document, extract
from perdure.pipelines.image import pipeline as images
from perdure.pipelines.mail import message_pipeline as messages
from perdure.pipelines.mail import pipeline as archives
from tests.engine.cells import unasked
from tests.fuzz import celled, corpus, mutate

#: CPU time of one process, which reads some small files; a busy machine does not change it.
CPU_S = 60
#: Memory and time of the stages that read these in the product.
LIMITS = {
    "document": Limits(document.EXTRACT_MB << 20, CPU_S, document.EXTRACT_S),
    "message": Limits(messages.READ_MB << 20, CPU_S, messages.READ_S),
    "archive": Limits(archives.ARCHIVE_MB << 20, CPU_S, archives.ARCHIVE_S),
    "image": Limits(images.IMAGE_MB << 20, CPU_S, images.LOOK_S),
}
REFERENCE = Path(__file__).parents[2] / "docs" / "reference.md"

Case = tuple[str, int]


@dataclass(frozen=True)
class Finding:
    kind: str
    seed: int
    outcome: str
    error: str


@dataclass
class Account:
    """How many readings of each kind ended how, and those that should not have ended so."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        for (kind, outcome), count in sorted(self.outcomes.items()):
            yield f"{kind:12} {outcome:32} {count:8}"
        total = self.outcomes.total()
        yield f"{total} files, {len(self.findings)} findings"


def cases(kinds: Iterable[str], first: int, count: int | None, minutes: float | None) -> Iterator[Case]:
    """Kinds in turn, each with its seeds from `first` on: `count` files in all, or as many as the minutes allow."""
    names, end_s = list(kinds), time.monotonic() + (minutes or 0) * 60
    number = 0
    while time.monotonic() < end_s if count is None else number < count:
        yield names[number % len(names)], first + number // len(names)
        number += 1


class Campaign:
    """Reads cases in cells, `jobs` at a time; files of findings are kept in `keep`."""

    def __init__(self, jobs: int = 2, keep: Path | None = None) -> None:
        self.account = Account()
        self._jobs, self._keep = jobs, keep
        self._nursery = Nursery([celled.__name__, *extract.MODULES, *images.MODULES, *archives.MODULES])
        self._documented = set(re.findall(r"^\| `(\w+)` \|", REFERENCE.read_text(), re.M))

    async def run(self, chosen: Iterator[Case]) -> Account:
        """Read them all, `jobs` at a time."""
        with tempfile.TemporaryDirectory(prefix="perdure-fuzz-") as directory:
            try:
                await asyncio.gather(
                    *(self._work(chosen, Path(directory) / str(n)) for n in range(self._jobs))
                )
            finally:
                await self._nursery.close()
        return self.account

    async def _work(self, chosen: Iterator[Case], path: Path) -> None:
        for kind, seed in chosen:
            data = mutate.case(kind, seed)
            path.write_bytes(data)
            outcome, error = await self._outcome(kind, path)
            self.account.outcomes[kind, outcome] += 1
            if error is not None:
                self._found(Finding(kind, seed, outcome, error), data)

    async def _outcome(self, kind: str, path: Path) -> tuple[str, str | None]:
        """How it ended, and what is wrong with that."""
        try:
            await self._read(corpus.reader_of(kind), path)
        except (Permanent, Transient) as refused:
            known = type(refused) in (Permanent, Transient) and refused.code in self._documented
            return str(refused.code), None if known else repr(refused)
        except Exception as error:
            notes = "\n".join(getattr(error, "__notes__", ()))
            return str(getattr(error, "code", type(error).__name__)), f"{error!r}\n{notes}"
        return "read", None

    async def _read(self, reader: str, path: Path) -> None:
        """As the product does: many to a process, and once more alone where it is in doubt whose fault it was."""
        target, payload = f"{celled.__name__}:{reader}", str(path).encode()
        try:
            await self._nursery.run(
                target, payload, unasked, LIMITS[reader], reuse=document.REUSE, whose=reader
            )
        except (CellDoubtful, NurseryLost):
            await self._nursery.run(target, payload, unasked, LIMITS[reader])

    def _found(self, finding: Finding, data: bytes) -> None:
        self.account.findings.append(finding)
        if self._keep is not None:
            self._keep.mkdir(parents=True, exist_ok=True)
            (self._keep / f"{finding.kind.replace(' ', '-')}-{finding.seed}").write_bytes(data)

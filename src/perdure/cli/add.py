"""`perdure add`: files, directories, URLs and standard input become documents."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from perdure.core.frozen import frozen
from perdure.errors import UsageError
from perdure.service import AsyncPerdure

SHOWN_FROM = 20  # documents, from which on a bar is worth it


@frozen
class Outcome:
    """What became of one thing that was to be added; `id` is empty where it was refused."""

    source: str
    answer: str  # added, exists, refused
    id: str = ""
    error: str = ""
    code: str = ""


def sources(given: Sequence[str], store: str = "") -> list[tuple[str, dict[str, Any]]]:
    """(what to call it, how to add it) of each; a directory stands for all files in it, but neither for hidden ones nor
    for those of the store itself."""
    own = store.removeprefix("sqlite:///") if store.startswith("sqlite:///") else ""
    found: list[tuple[str, dict[str, Any]]] = []
    for one in given:
        if one == "-":
            found.append(("-", {"data": sys.stdin.buffer.read(), "name": ""}))
        elif "://" in one:
            found.append((one, {"url": one}))
        elif Path(one).is_dir():
            found += [(str(path), {"path": path}) for path in _files(Path(one), own)]
        else:
            found.append((one, {"path": one}))
    return found


def _files(directory: Path, store: str) -> Iterator[Path]:
    own = str(Path(store).resolve()) if store else None
    for path in sorted(directory.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(directory).parts)
        if path.is_file() and not hidden and not (own and str(path.resolve()).startswith(own)):
            yield path


async def add_all(
    app: AsyncPerdure, pipeline: str, given: Sequence[tuple[str, dict[str, Any]]], options: dict[str, Any]
) -> list[Outcome]:
    """Add them in order; one that is refused keeps no other from being added."""
    outcomes: list[Outcome] = []
    shown = len(given) >= SHOWN_FROM and sys.stderr.isatty()
    with _bar() if shown else nullcontext() as bar:
        task = bar.add_task("adding", total=len(given)) if bar is not None else None
        for source, entry in given:
            outcomes.append(await _add(app, pipeline, source, {**entry, **options}))
            if bar is not None and task is not None:
                bar.advance(task)
    return outcomes


async def _add(app: AsyncPerdure, pipeline: str, source: str, entry: dict[str, Any]) -> Outcome:
    try:
        added = await app.add(pipeline=pipeline, **entry)
    except UsageError as error:
        return Outcome(source, "refused", error=str(error), code=str(error.code))
    except OSError as error:
        return Outcome(source, "refused", error=f"{error.strerror}", code="file_unreadable")
    return Outcome(source, added.answer, added.id)


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip


def show(outcomes: Sequence[Outcome]) -> int:
    """A line for each on standard output, refusals on standard error; the exit status."""
    for one in outcomes:
        if one.answer == "refused":
            print(f"perdure: {one.source}: {one.error} [{one.code}]", file=sys.stderr)
        else:
            print(f"{one.answer:7} {one.id}  {one.source}")
    return 2 if any(one.answer == "refused" for one in outcomes) else 0

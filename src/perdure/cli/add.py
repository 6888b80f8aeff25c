"""`perdure add`: documents are taken in some hundreds to a transaction, and each has its own answer.

One that is refused keeps no other from being added. Ctrl-C ends it after the transaction under way: what was added is
known, and the exit status is 130.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from perdure.cli.drawing import console
from perdure.cli.opened import say_created
from perdure.cli.saying import say
from perdure.cli.sources import Found, batches, found, own_files, packed, prompt, shown, spooled, texts, valid
from perdure.cli.stop import STOPPED, Stop
from perdure.cli.target import pipeline_of
from perdure.core.frozen import frozen
from perdure.engine import rooms
from perdure.engine.intake import INLINE_BYTES_MAX
from perdure.errors import InputInvalid, UsageError
from perdure.pipelines.extract import sniff_file
from perdure.pipelines.extract.sniff import MBOX
from perdure.pipelines.mail.packing import is_maildir
from perdure.pipelines.routing import ARCHIVES, AUTO, IMAGE, IMAGES, MAIL, by_kind
from perdure.service import AddOptions, AsyncPerdure

SHOWN_FROM = 20  # documents, from which on a bar is worth it
HEAD_START_S = 0.001  # of a batch, so that the store writes it while the next one is read
LINE_S = 5.0  # between lines of progress where there is no terminal


@frozen
class Asked:
    """What somebody typed."""

    pipeline: str
    what: Sequence[str]
    options: AddOptions
    text: str | None = None
    name: str | None = None
    as_json: bool = False
    watch: bool = False
    work: bool = False
    replace: bool = False

    @property
    def total(self) -> int | None:
        """How many documents that is; None where a directory must be listed to know."""
        return None if any(map(os.path.isdir, self.what)) else len(self.what) + (self.text is not None)


@frozen
class Outcome:
    """What became of one thing that was to be added; `id` is empty where it was refused."""

    source: str
    answer: str  # refused, or what `add` answered
    id: str = ""
    error: str = ""
    code: str = ""
    state: str | None = None  # in which it was found, if it was there


class Answers:
    """Tells each answer as it comes: a line on standard output, refusals on standard error; with `as_json` all as
    objects on standard output."""

    def __init__(self, as_json: bool = False) -> None:
        self.counts: Counter[str] = Counter()
        self.ids: list[str] = []
        self._json = as_json

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        self.counts.update(one.answer for one in outcomes)
        self.ids += [one.id for one in outcomes if one.id]
        for one in outcomes:
            if self._json:
                print(json.dumps({**asdict(one), "source": shown(one.source)}))
            elif one.answer == "refused":
                say(f"perdure: {one.source}: {shown(one.error)} [{one.code}]", file=sys.stderr)
            else:
                found = f" ({one.state})" if one.answer == "exists" else ""
                say(f"{one.answer:7} {one.id}  {one.source}{found}")
        sys.stdout.flush()

    def total(self) -> str:
        """How many of each answer, for people."""
        refused_last = sorted(self.counts.items(), key=lambda counted: counted[0] == "refused")
        return ", ".join(f"{n:,} {answer}" for answer, n in refused_last) or "nothing was added"

    @property
    def status(self) -> int:
        return 2 if self.counts["refused"] else 0


def things(app: AsyncPerdure, asked: Asked, directory: Path) -> Iterator[Found]:
    """All that is to be added. Standard input is read here and now: nobody can interrupt it later."""
    what, text, name = asked.what, asked.text, asked.name
    if not what and text is None:
        raise InputInvalid("say what to add: files, directories, URLs, - for standard input, or --text")
    if name is not None and asked.total != 1:
        raise InputInvalid("--name is for one document; leave it out where there are several")
    if "key" in asked.options and asked.total != 1:
        raise InputInvalid("--key is for one document; leave it out where there are several")
    own, read = own_files(app), {}
    if "-" in what:
        prompt(sys.stdin.buffer)
        read["-"] = spooled(sys.stdin.buffer, directory, app.settings.document_bytes_max)

    def files_of(one: str) -> Iterable[Found]:
        if one in read:
            return [read[one]]
        return [packed(one, directory)] if _is_mail(asked.pipeline, one) else found([one], own)

    files = chain.from_iterable(map(files_of, what))
    for thing in chain(files, [] if text is None else [texts(text)]):
        yield thing if name is None else _named(thing, valid(name))


def _is_mail(pipeline: str, path: str) -> bool:
    """Whether a directory is one archive of mail, and not a file after the other."""
    return os.path.isdir(path) and (pipeline == MAIL or (pipeline == AUTO and is_maildir(Path(path))))


def _named(thing: Found, name: str) -> Found:
    return Found(thing.source, {**thing.entry, "name": name}, thing.size, thing.error, thing.code)


async def add_all(
    app: AsyncPerdure, asked: Asked, given: Iterable[Found], answers: Answers, stop: Stop
) -> None:
    """Add them and tell the answers in order, until it is stopped; StoreError ends it."""
    progress = Bar(answers, asked.total) if sys.stderr.isatty() else Lines(answers)
    under_way: deque[asyncio.Future[list[Outcome | BaseException]]] = deque()
    turns: dict[int, asyncio.Task[Outcome]] = {}
    failed: list[BaseException] = []

    async def answer() -> None:
        try:
            ended = await under_way.popleft()
        finally:
            progress.hide()
        answers.tell([one for one in ended if isinstance(one, Outcome)])
        failed.extend(one for one in ended if isinstance(one, BaseException))

    for batch in batches(given):
        progress.show(len(batch))
        adding = [_in_turn(app, asked, thing, turns) for thing in batch]
        under_way.append(asyncio.gather(*adding, return_exceptions=True))
        await asyncio.sleep(HEAD_START_S)
        if len(under_way) > 1:
            await answer()
        if stop.asked.is_set() or failed:
            break
    while under_way:
        await answer()
    if failed:
        raise failed[0]


def _in_turn(
    app: AsyncPerdure, asked: Asked, thing: Found, turns: dict[int, asyncio.Task[Outcome]]
) -> asyncio.Task[Outcome]:
    """Begin to add it. Of large files of one size, which may be the same, the first one is added first."""
    size = thing.size if thing.size > INLINE_BYTES_MAX else 0  # what is small keeps its place anyway

    async def add(before: asyncio.Task[Outcome] | None) -> Outcome:
        if before is not None:
            await asyncio.wait({before})
        return await _add(app, asked, thing)

    task = asyncio.create_task(add(turns.get(size)))
    if size:
        turns[size] = task
        task.add_done_callback(lambda ended: turns.pop(size) if turns.get(size) is ended else None)
    return task


async def _add(app: AsyncPerdure, asked: Asked, thing: Found) -> Outcome:
    """What is added together shares a transaction, because the store writes all that waits for it at once."""
    if thing.code:
        return Outcome(thing.source, "refused", error=thing.error, code=thing.code)
    entry: AddOptions = {**thing.entry, **asked.options}
    try:
        if "path" in entry:
            entry["media_type"] = sniff_file(Path(entry["path"]), entry["name"])
        pipeline = asked.pipeline if asked.pipeline != AUTO else _by_content(app, entry)
        if pipeline == MAIL:
            _as_archive(entry, thing.source)
        if pipeline == IMAGE:
            entry.setdefault("collection", IMAGES)
        if asked.replace and "path" in entry and thing.source != "-":
            entry.setdefault("key", f"path:{os.path.abspath(entry['path'])}")
        added = await app.add(pipeline=pipeline, **entry)
    except UsageError as error:
        return Outcome(thing.source, "refused", error=str(error), code=str(error.code))
    except OSError as error:
        return Outcome(
            thing.source, "refused", error=f"cannot be read: {error.strerror}", code="file_unreadable"
        )
    return Outcome(thing.source, added.answer, added.id, state=added.state)


def _by_content(app: AsyncPerdure, entry: AddOptions) -> str:
    """The pipeline for what it is, of those that the app has."""
    return pipeline_of(app, by_kind(entry.get("media_type", ""), app.pipelines))


def _as_archive(entry: AddOptions, source: str) -> None:
    """An mbox that grew is the same archive with more in it, not another one: its path is its key."""
    entry.setdefault("collection", ARCHIVES)
    if "path" in entry and source != "-" and entry.get("media_type") == MBOX:
        entry.setdefault("key", f"mbox:{os.path.abspath(entry['path'])}")


class Bar:
    """How far it is, on a terminal. It is taken away while answers are told, which may go to the same one."""

    def __init__(self, answers: Answers, total: int | None) -> None:
        self._answers = answers
        self._bar = Progress(
            TextColumn("adding"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            console=console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip
        self._task = self._bar.add_task("adding", total=total)

    def show(self, coming: int) -> None:
        done = self._answers.counts.total()
        self._bar.update(self._task, completed=done)
        if done + coming >= SHOWN_FROM:
            self._bar.start()

    def hide(self) -> None:
        self._bar.stop()


class Lines:
    """How far it is, where there is no terminal: a line now and then."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._next_s = time.monotonic() + LINE_S

    def show(self, coming: int) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + LINE_S
            say(f"perdure: {self._answers.total()} so far", file=sys.stderr, flush=True)

    def hide(self) -> None:
        return None


def run(app: AsyncPerdure, asked: Asked) -> int:
    """The whole command; its exit status."""
    answers = Answers(asked.as_json)
    if asked.work:
        app.check_settings()
    try:
        with rooms.open_room() as directory:
            given = things(app, asked, directory)
            # mistakes show before a store is opened, or created
            first = next((thing for thing in given if not _is_refused(thing, answers)), None)
            if first is None:
                _say_total(answers)
                return answers.status
            return asyncio.run(_run(app, asked, chain([first], given), answers))
    except (KeyboardInterrupt, asyncio.CancelledError):
        say("perdure: stopped at once", file=sys.stderr)
        return STOPPED
    except BrokenPipeError:  # nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        say("perdure: stopped, because nobody reads the answers", file=sys.stderr)
        return STOPPED


def _is_refused(thing: Found, answers: Answers) -> bool:
    """Whether it cannot be added; that is told."""
    if thing.code:
        answers.tell([Outcome(thing.source, "refused", error=thing.error, code=thing.code)])
    return bool(thing.code)


def _say_total(answers: Answers, stopped: str = "") -> None:
    if stopped or answers.counts.total() > 1:
        say(f"perdure: {stopped}{answers.total()}", file=sys.stderr)


async def _run(app: AsyncPerdure, asked: Asked, given: Iterable[Found], answers: Answers) -> int:
    stop = Stop()
    try:
        await app.start()
        say_created(app)
        with stop.on_signals():
            try:
                await add_all(app, asked, given, answers, stop)
            finally:
                stopped = "stopped: " if stop.asked.is_set() else ""
                _say_total(answers, stopped)
            if stopped:
                return STOPPED
            if not (asked.watch or asked.work) or not answers.ids:
                return answers.status
            from perdure.cli.watch import follow

            ended = await follow(app, asked.options["org"], answers.ids, stop, asked.work, asked.as_json)
            return ended if ended == STOPPED else answers.status or ended
    finally:
        await app.close()

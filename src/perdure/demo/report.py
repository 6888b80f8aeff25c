"""The end of the demo: what became of the documents, what can be found in them, and whether all was as promised."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perdure.cli.document import happened
from perdure.cli.words import shown, span
from perdure.demo.accounts import Account, accounts, read_twice, whole
from perdure.demo.findings import Answer, Link, answers, connected, knows_meaning, links, searched
from perdure.demo.play import Kill, Play
from perdure.demo.shelf import BOOK, Book
from perdure.demo.words import pages_named
from perdure.operate.status import attempt_facts
from perdure.pipelines.extract import Summary
from perdure.store.records import SavedStage

LINKS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Report:
    """Everything there is to say, gathered while the store is open."""

    saves: dict[str, list[SavedStage]]
    summaries: dict[str, Summary]  # of what is done
    answers: list[Answer]
    links: list[Link]
    accounts: list[Account]

    @property
    def kept(self) -> bool:
        return all(account.kept for account in self.accounts)


async def gather(play: Play) -> Report:
    """Look everything up, and check it."""
    saves, summaries = {}, {}
    for book in play.books:
        id_ = play.ids[book.name]
        saves[book.name] = await play.app.store.saves(play.org, id_, play.statuses[book.name].pipeline)
        if play.statuses[book.name].state == "done":
            summaries[book.name] = (await play.app.output(id_, "extract", play.org)).summary
    found = await answers(play)
    near = await links(play)
    checked = [*await accounts(play), whole(play.books, summaries), searched(found)]
    return Report(saves, summaries, found, near, [*checked, connected(near)] if knows_meaning() else checked)


def written(play: Play, report: Report) -> list[RenderableType]:
    """What to print, part by part."""
    counts = Counter(status.state for status in play.statuses.values())
    of_each = ", ".join(f"{number} {state}" for state, number in counts.most_common())
    parts = [
        _part(f"{len(play.books)} documents: {of_each}", _documents(play, report)),
        _part("Killed in the middle", _killed(play, play.kill)) if play.kill else Text(),
        *(_part(f"Tried again: {book.name}", _history(play, book)) for book in play.books if book.busy),
        _part("Set aside, with the reason", _dead(play)),
        _part("Search", *_search(report)),
    ]
    if report.links:
        near = [
            (f"{link.score:.2f}", f"{link.one}  and  {link.other}") for link in report.links[:LINKS_SHOWN]
        ]
        parts.append(_part("Connected, because they are about the same", _rows(*near)))
    return [*parts, _part("What was promised, counted", _accounts(report.accounts))]


def next_steps(play: Play, store: str, kept: bool) -> list[str]:
    """What to try next, line by line."""
    if not kept:
        return ["Try next: perdure demo --keep leaves all of this where you can look at it."]
    dead = next((id_ for name, id_ in play.ids.items() if play.statuses[name].state == "dead"), "")
    return [
        "All of it is kept. Try next:",
        f"  export PERDURE_STORE='{shown(store)}'",
        f"  perdure status {dead}".rstrip(),
        f'  perdure search "who holds the lease" --org {play.org}',
        "  perdure add FILE_OR_URL && perdure worker",
    ]


def _part(title: str, *body: RenderableType) -> RenderableType:
    return Group(Text(), Text(title, style="bold"), *(Padding(one, (0, 0, 0, 2)) for one in body))


def _documents(play: Play, report: Report) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for title in ("document", "state", "attempts", "parts", "words", "at work", "in all"):
        table.add_column(
            title, justify="left" if title in ("document", "state", "parts") else "right", no_wrap=True
        )
    for book in play.books:
        status, found = play.statuses[book.name], report.summaries.get(book.name)
        table.add_row(
            book.name,
            Text(status.state, style="green" if found else "red"),
            str(status.attempts_made),
            f"{found.parts} {book.word}{'s' if found.parts != 1 else ''}" if found else "",
            f"{found.words:,}" if found else "",
            span(sum(save.duration_ms for save in report.saves[book.name])) if found else "",
            span((status.finished_ms or status.created_ms) - status.created_ms),
        )
    return table


def _killed(play: Play, kill: Kill) -> Table:
    later = f"{play.resumed_s:.1f} s later" if play.resumed_s is not None else "later"
    whom = f"worker {kill.worker.number} (pid {kill.worker.pid})"
    others = ", ".join(name for name in kill.in_hand if name != BOOK)
    twice = read_twice(play)
    named = f"{pages_named(twice)} twice" if twice else "no page twice"
    again = pages_named(twice & kill.saved) if twice & kill.saved else "none of them"
    rows = [
        ("killed", f"{whom} with kill -9, in the middle of {BOOK}"),
        ("saved", f"{pages_named(kill.saved)} of {play.book.parts}; read again: {again}"),
        ("resumed", f"by the next worker, {later}; {len(play.reads)} reads in all, {named}"),
    ]
    return _rows(*rows, *([("also in hand", f"{others}; taken up again")] if others else []))


def _history(play: Play, book: Book) -> Table:
    return _rows(
        *(
            (
                str(attempt.attempt) if attempt.charged else "–",
                attempt.outcome,
                happened(attempt_facts(attempt)),
            )
            for attempt in play.attempts[book.name]
        )
    )


def _dead(play: Play) -> Table:
    rows = []
    for book in play.books:
        attempts = play.attempts.get(book.name)
        if play.statuses[book.name].state == "dead" and attempts:
            why = happened(attempt_facts(attempts[-1]))
            rows.append((book.name, f"{book.about}; {why}" if book.about else why))
    return _rows(*rows)


def _search(report: Report) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for answer in report.answers:
        how = "by meaning, no word of it is there" if answer.question.by_meaning else "by words"
        lines.append(Text.assemble((f"“{answer.question.query}”", "cyan"), (f"  {how}", "dim")))
        if answer.hit is None:
            lines.append(Padding(Text("nothing found", style="red"), (0, 0, 0, 2)))
            continue
        where = (
            f"page {answer.hit.page}" if answer.hit.page is not None else answer.hit.anchor.replace("=", " ")
        )
        snippet = " ".join(answer.hit.snippet.split())
        lines.append(Padding(Text.assemble((f"{answer.hit.name}, {where}: ", "bold"), snippet), (0, 0, 0, 2)))
    if not knows_meaning():
        lines.append(Text("by meaning: with pip install 'perdure[embed]'", style="dim"))
    return lines


def _accounts(found: list[Account]) -> Table:
    kept, broken = Text("ok", style="green"), Text("NOT KEPT", style="bold red")
    return _rows(*((kept if a.kept else broken, a.name, a.because) for a in found))


def _rows(*rows: tuple[Text | str, ...]) -> Table:
    """Columns, of which the last one wraps."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    for row in rows[:1]:
        for _ in row[:-1]:
            table.add_column(no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table

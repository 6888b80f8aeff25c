"""The end of the demo: what happened at the kill, what became of the documents, and the accounts."""

from __future__ import annotations

from urllib.parse import urlsplit

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from perdure.demo.accounts import Account
from perdure.demo.play import Play
from perdure.demo.words import reason
from perdure.store.records import Status


def report(play: Play, found: list[Account]) -> list[RenderableType]:
    """What to print, part by part."""
    title = "Accounts, from the ledger that the stages themselves wrote"
    return [Text(), _facts(play), Text(), Text(title, style="bold"), _accounts(found), Text()]


def next_steps(play: Play, store: str, kept: bool) -> list[str]:
    """What to try next, line by line."""
    if not kept:
        return ["Try next: perdure demo --keep leaves the store, for perdure status to look at."]
    dead = next((f" {status.id}" for status in _dead(play)), "")
    look = [f"  perdure status{which} --store '{shown(store)}'" for which in dict.fromkeys(("", dead))]
    return ["The documents are kept. Try next:", *look]


def shown(store: str) -> str:
    """The store's address as it may be seen by others."""
    parts = urlsplit(store)
    return store.replace(f":{parts.password}@", ":***@") if parts.password else store


def _facts(play: Play) -> Table:
    table = _table()
    kill = play.kill
    if kill is not None:
        names = ", ".join(kill.in_hand) or "nothing"
        table.add_row("killed", f"worker {kill.worker} with {len(kill.in_hand)} documents in hand: {names}")
        after = sorted(play.resumed_ms.values())
        saved = sum(len(held.saved) for held in kill.in_hand.values())
        items = sum(held.items for held in kill.in_hand.values())
        if after:
            taken = f"{saved} stages and {items} paragraphs taken up from their saves"
            table.add_row("resumed", f"by worker 2, {after[0]} to {after[-1]} ms after the kill; {taken}")
    table.add_row("documents", f"{play.count_in('done')} done, {play.count_in('dead')} dead")
    for status in _dead(play):
        table.add_row("dead", f"{status.name}: {reason(status, status.error_code, status.error_message)}")
    return table


def _dead(play: Play) -> list[Status]:
    found = (play.statuses[book.name] for book in play.books if book.name in play.statuses)
    return [status for status in found if status.state == "dead"]


def _accounts(found: list[Account]) -> Table:
    table = _table()
    table.add_column(justify="right", no_wrap=True, style="bold")
    table.add_column()
    for account in found:
        mark = Text("ok", style="green") if account.kept else Text("NOT KEPT", style="bold red")
        table.add_row(mark, account.name, str(account.found), account.because)
    return table


def _table() -> Table:
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column()
    return table

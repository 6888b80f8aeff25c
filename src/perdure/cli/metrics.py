"""`perdure metrics` and `perdure rules`: what a scrape would answer, and the files that watch it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perdure.cli.options import StoreOption
from perdure.cli.saying import say, say_lines


def metrics(store: StoreOption = None) -> None:
    """Print the metrics of the whole store as Prometheus reads them."""
    from perdure.cli.opened import opened
    from perdure.service import AsyncPerdure
    from perdure.watch.board import Board
    from perdure.watch.metrics import METRICS
    from perdure.watch.render import text
    from perdure.watch.serve import Scrape
    from perdure.watch.shared_counters import SHARED, SharedCounters

    async def read(app: AsyncPerdure) -> bytes:
        numbers = await Scrape((Board.private(),), app.store, SharedCounters((), app.store)).numbers()
        return text(numbers, [metric for metric in METRICS if metric.of == "store" or metric.name in SHARED])

    say_lines(opened(store, read).decode())


def rules(
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="The dashboard for Grafana instead.")
    ] = False,
) -> None:
    """Print the alert rules for Prometheus."""
    import perdure.watch
    from perdure.settings import Settings
    from perdure.watch.runbooks import rules as with_links

    if dashboard:
        found = Path(perdure.watch.__file__).parent / "dashboards" / "retry-policy-monitoring.json"
        say_lines(found.read_text())
        return
    say_lines(with_links(Settings().runbook_url))


def runbook(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="An alert or a tier; without it, list them.")
    ] = None,
) -> None:
    """Print what to do about an alert or an escalation tier."""
    from perdure.watch.runbooks import names
    from perdure.watch.runbooks import runbook as page

    if name is not None:
        say_lines(page(name))
        return
    for each, title in names().items():
        say(f"{each:<32}{title}")

"""`perdure metrics` and `perdure rules`: what a scrape would answer, and the files that watch it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perdure.cli.options import StoreOption
from perdure.cli.saying import say_lines


def metrics(store: StoreOption = None) -> None:
    """Print the metrics of the whole store as Prometheus reads them; each worker serves these and its own counters."""
    from perdure.cli.opened import opened
    from perdure.service import AsyncPerdure
    from perdure.watch.metrics import METRICS
    from perdure.watch.render import text

    async def read(app: AsyncPerdure) -> bytes:
        numbers = await app.measure().numbers()
        return text(numbers, [metric for metric in METRICS if metric.of == "store"])

    say_lines(opened(store, read).decode())


def rules(
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="The dashboard for Grafana instead.")
    ] = False,
) -> None:
    """Print the alert rules for Prometheus."""
    import perdure.watch

    watch = Path(perdure.watch.__file__).parent
    found = (
        watch / "dashboards" / "retry-policy-monitoring.json"
        if dashboard
        else watch / "rules" / "perdure.rules.yml"
    )
    say_lines(found.read_text())

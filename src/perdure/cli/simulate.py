"""`perdure simulate`: what a retry policy would do to a service in trouble."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.saying import say
from perdure.errors import SettingInvalid

if TYPE_CHECKING:
    from perdure.operate.simulate.experiment import Found
    from perdure.operate.simulate.model import Model

FLICKER_S = 60.0
POLICIES = "none,jitter,budget,breaker,adaptive,ours"


def simulate(
    capacity: Annotated[
        float | None, typer.Option(help="Requests/s the service can answer [500].", min=0.1)
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Calls/s of all clients [400].", min=0.1)] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds a client waits [1].", min=0.01)] = None,
    clients: Annotated[int | None, typer.Option(help="Processes that call [100].", min=1)] = None,
    outage: Annotated[float | None, typer.Option(help="An outage of so many seconds.", min=0.5)] = None,
    brownout: Annotated[float | None, typer.Option(help="A brown-out of so many seconds.", min=0.5)] = None,
    flicker: Annotated[
        float | None, typer.Option(help="A share of requests that fail for a minute.", min=0.01, max=0.99)
    ] = None,
    backlog: Annotated[
        int | None,
        typer.Option(help="Play this number of waiting documents, beside a plain loop.", min=1, max=100_000),
    ] = None,
    calls: Annotated[int, typer.Option(help="With --backlog: calls of a document.", min=1, max=1_000)] = 8,
    throttle: Annotated[
        float | None,
        typer.Option(help="With --backlog: a share of requests that get a 429.", min=0.01, max=0.99),
    ] = None,
    retry_after: Annotated[
        float | None, typer.Option(help="With --throttle: the seconds that a 429 asks for.", min=0.1)
    ] = None,
    share: Annotated[
        float, typer.Option(help="What a brown-out leaves of the capacity.", min=0.01, max=0.99)
    ] = 0.3,
    again: Annotated[str, typer.Option(help="When a failed job is tried again: LOW-HIGH seconds.")] = "20-40",
    seeds: Annotated[int, typer.Option(help="Runs of each, with other chances.", min=1, max=1000)] = 3,
    policies: Annotated[str, typer.Option(help="Which ones to compare.")] = POLICIES,
    json_: Annotated[
        bool, typer.Option("--json", help="One JSON object; progress goes to standard error.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Write a chart: FILE.svg, or FILE.png with Pillow.")
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="Take rate, latency and failures from this store.")
    ] = None,
    since: Annotated[str, typer.Option(help="With --store: how far back, like 30m, 1h, 7d.")] = "1h",
    api: Annotated[
        str | None, typer.Option(help="With --store: whose calls; by default the busiest.")
    ] = None,
) -> None:
    """Compare retry policies on a simulated service: recovery, load, success, documents killed. Nothing is called."""
    from perdure.operate.simulate import plot as plotting
    from perdure.operate.simulate import report
    from perdure.operate.simulate.backlog import flickering
    from perdure.operate.simulate.experiment import experiment
    from perdure.operate.simulate.model import Model

    if plot is not None:
        plotting.check(plot)
    if backlog is not None:
        _only_backlog(rate=rate, timeout=timeout, store=store, plot=plot)
        calm = flickering(backlog, calls, flicker or 0.0, clients or 2, throttle or 0.0, retry_after or 0.0)
        faulty = _backlog(calm, brownout, outage, capacity)
        _drain(faulty, seeds, json_)
        return
    if throttle is not None or retry_after is not None:
        raise SettingInvalid("--throttle and --retry-after need --backlog")
    chosen = _policies(policies)
    model = replace(Model(), again_s=_span(again))
    if store is not None:
        model = _from_store(model, store, _seconds(since), api)
    given: dict[str, Any] = {"capacity": capacity, "rate": rate, "timeout_s": timeout, "clients": clients}
    model = replace(model, **{name: value for name, value in given.items() if value is not None})
    with _progress() as done:
        found = experiment(_faults(model, outage, brownout, share, flicker), chosen, seeds, done)
    if plot is not None:
        plotting.write(plot, found)
    if json_:
        print(json.dumps(report.facts(found, seeds)))
        return
    _show(found, seeds, plot)


def _only_backlog(**others: object) -> None:
    for name, value in others.items():
        if value is not None:
            raise SettingInvalid(f"--backlog and --{name} cannot be used together; leave one of them out")


def _backlog(calm: Model, brownout: float | None, outage: float | None, capacity: float | None) -> Model:
    """The model with the one fault that was asked for."""
    from perdure.operate.simulate.backlog import away, pressed

    chance = bool(calm.flicker or calm.throttle)
    if chance + (brownout is not None) + (outage is not None) != 1:
        raise SettingInvalid(
            "--backlog needs one fault: --flicker SHARE and --throttle SHARE, --outage SECONDS, "
            "or --brownout SECONDS with --capacity REQUESTS_PER_SECOND"
        )
    if calm.after_s and not calm.throttle:
        raise SettingInvalid("--retry-after needs --throttle, the share of requests that ask for that wait")
    if chance:
        return calm
    if outage is not None:
        return away(calm.documents, calm.calls, outage, calm.clients)
    if capacity is None:
        raise SettingInvalid(
            "--backlog with --brownout needs --capacity, the requests per second that the service still answers"
        )
    return pressed(calm.documents, calm.calls, capacity, brownout or 0.0, calm.clients)


def _drain(model: Model, seeds: int, json_: bool) -> None:
    """Play a backlog with each seed, and show the medians."""
    from perdure.cli.drawing import console
    from perdure.operate.simulate import report
    from perdure.operate.simulate.backlog import drain, median

    with _progress() as done:
        runs = []
        for seed in range(seeds):
            runs.append(drain(model, seed))
            done(seed + 1, seeds)
    if json_:
        print(json.dumps({"seeds": seeds, "median": median(runs), "runs": [asdict(run) for run in runs]}))
        return
    out = console()
    out.print(
        f"{model.documents:,} documents with {model.calls} calls each, {model.clients} workers with {model.slots} "
        f"slots, answers after {model.latency_s:g} s; {report.trouble(model)}; medians of {seeds} runs",
        style="bold",
        soft_wrap=True,
    )
    out.print(report.backlog(model, median(runs)))


def _policies(words: str) -> list[str]:
    from perdure.operate.simulate.policy import POLICIES as known

    chosen = [word for word in re.split(r"[,\s]+", words) if word]
    unknown = [word for word in chosen if word not in known]
    if unknown or not chosen:
        named = f"there is no policy {unknown[0]!r}" if unknown else "no policy is named"
        raise SettingInvalid(f"--policies: {named}; known are {', '.join(known)}")
    return list(dict.fromkeys(chosen))


def _faults(
    model: Model, outage: float | None, brownout: float | None, share: float, flicker: float | None
) -> list[Model]:
    """The fault asked for; without one a brown-out, an outage and a blip."""
    if sum(fault is not None for fault in (outage, brownout, flicker)) > 1:
        raise SettingInvalid("choose one of --outage, --brownout and --flicker")
    if flicker is not None:
        return [_lasting(replace(model, share=1.0, flicker=flicker), FLICKER_S)]
    if outage is not None:
        return [_lasting(replace(model, share=0.0), outage)]
    if brownout is not None:
        return [_lasting(replace(model, share=share), brownout)]
    return [replace(model, share=share), replace(model, share=0.0), replace(model, share=0.0, fault_s=3.0)]


def _lasting(model: Model, fault_s: float) -> Model:
    """With time enough after the fault to see what becomes of it."""
    return replace(model, fault_s=fault_s, end_s=max(model.end_s, model.begin_s + 2 * fault_s + 60.0))


def _span(words: str) -> tuple[float, float]:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)", words)
    if match is None or float(match[1]) > float(match[2]):
        raise SettingInvalid(f"--again {words}: write LOW-HIGH in seconds, for example 20-40")
    return float(match[1]), float(match[2])


def _seconds(words: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", words)
    if match is None:
        raise SettingInvalid(f"--since {words}: write a number and s, m, h or d, for example 1h")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3_600, "d": 86_400}[match[2]]


def _from_store(model: Model, url: str, since_s: float, api: str | None) -> Model:
    import asyncio

    from perdure.operate.simulate.history import fitted, read
    from perdure.settings import Settings
    from perdure.store.open import open_store

    async def reading() -> Model:
        opened = open_store(url, None, Settings().direct_url)
        await opened.open(create=False)
        try:
            found = await read(opened, since_s, api)
        finally:
            await opened.close()
        say(
            f"{found.name}: {found.operations} operations, {found.rate:.2f}/s in the busiest minute, "
            f"{found.failed * 100:.1f} % of requests failed, median {found.latency_s:.2f} s",
            file=sys.stderr,
        )
        return fitted(model, found)

    return asyncio.run(reading())


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error; refreshed by hand, so that no thread runs while processes are forked."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from perdure.cli.drawing import console

    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("runs", total=None)

        def done(count: int, total: int) -> None:
            bar.update(task, completed=count, total=total, refresh=True)

        yield done


def _show(found: Sequence[Found], seeds: int, plot: Path | None) -> None:
    from perdure.cli.drawing import console
    from perdure.operate.simulate import report

    out = console()
    for one in found:
        out.print(report.title(one.model, seeds), style="bold", soft_wrap=True)
        out.print(report.table(one))
        out.print()
    for note in report.notes(found):
        out.print(note, style="dim", soft_wrap=True)
    if plot is not None:
        out.print(f"chart written to {plot}", soft_wrap=True)

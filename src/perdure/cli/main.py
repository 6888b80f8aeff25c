"""The `perdure` command. Heavy modules are imported by the command that needs them, so `--help` answers at once."""

from __future__ import annotations

import json as jsonlib
import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import audit, contents, looking, operator, serving, webhooks, why
from perdure.cli.dead import dead
from perdure.cli.metrics import metrics, rules, runbook
from perdure.cli.options import (
    BUILTIN,
    AppOption,
    PipelineOption,
    ReasonOption,
    StoreOption,
    WhoOption,
    WordsOption,
)
from perdure.cli.saying import say, say_lines
from perdure.cli.simulate import simulate

if TYPE_CHECKING:
    from perdure.service import AsyncPerdure

app = typer.Typer(
    name="perdure", help="Process documents and never lose one.", no_args_is_help=True, add_completion=False,
    pretty_exceptions_enable=False,
)  # fmt: skip


def _print_version(wanted: bool) -> None:
    if wanted:
        from perdure import __version__

        say(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None: ...


def main() -> None:
    """Run the command; a known error is one line on standard error and exit status 2 (the caller's) or 1."""
    from perdure.errors import PerdureError, UsageError, extra_missing, redacted

    try:
        app()
    except Exception as error:
        known = error if isinstance(error, PerdureError) else extra_missing(error)
        if known is None:  # a bug of ours, or of the app's module
            say_lines(redacted(traceback.format_exc()), file=sys.stderr)
            sys.exit(1)
        say(f"perdure: {known} [{known.code}]", file=sys.stderr)
        sys.exit(2 if isinstance(known, UsageError) else 1)


def service(target: str, store: str | None) -> AsyncPerdure:
    """The app that is meant, over the store that is meant."""
    from perdure.cli.target import load_app

    service = load_app(target).service
    if store is not None:
        service.use(store)
    return service


@app.command()
def add(
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="WHAT...", help="Files, directories, URLs, or - for standard input."),
    ] = None,
    text: Annotated[str | None, typer.Option(help="A text to add.")] = None,
    name: Annotated[str | None, typer.Option(help="What to call it, where it is one document.")] = None,
    collection: Annotated[
        str | None,
        typer.Option(help="The collection they belong to; by default archives (mail), images or documents."),
    ] = None,
    org: Annotated[str, typer.Option(help="The organisation they belong to.")] = "default",
    work: Annotated[bool, typer.Option("--work", help="Process them here and now, and show how.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show their stages until all have ended.")] = False,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="A file takes the place of what was added from its path with --replace."
        ),
    ] = False,
    priority: Annotated[
        int | None, typer.Option(help="From -100 to 100, higher first.", min=-100, max=100)
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Not before: +2h, 06:30 (UTC), or 2027-01-31T06:30+01:00."),
    ] = None,
    attempts: Annotated[int | None, typer.Option(help="Executions in all.", min=1, max=10_000)] = None,
    backoff: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="The first wait; each one is twice the last.", min=0),
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Its identity: other content under a known key takes its place.")
    ] = None,
    meta: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="Handed to the stages (may be repeated), or one JSON object."
        ),
    ] = None,
    target: AppOption = BUILTIN,
    pipeline: Annotated[
        str, typer.Option(help="Their pipeline; auto: image, mail or document, by what is in each.")
    ] = "auto",
    store: StoreOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object per line.")] = False,
) -> None:
    """Take documents in: one line for each with its id. What is refused keeps no other from being added."""
    from perdure.cli.add import Asked, run
    from perdure.cli.add_options import options_of

    options = options_of(
        org=org, collection=collection, priority=priority, at=at, attempts=attempts, backoff_s=backoff, key=key,
        meta=meta,
    )  # fmt: skip
    asked = Asked(pipeline, what or [], options, text, name, json, watch, work, replace)
    raise typer.Exit(run(service(target, store), asked))


@app.command()
def worker(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:APP", help="Where the app is, for example books:app.")
    ] = BUILTIN,
    concurrency: Annotated[
        int | None, typer.Option(help="Documents at a time; by default the app's.", min=1, max=2000)
    ] = None,
    queue: Annotated[list[str] | None, typer.Option(help="Only these queues (may be repeated).")] = None,
    store: StoreOption = None,
) -> None:
    """Run a worker: a supervisor and a child that runs the stages. SIGTERM stops it gently, twice at once."""
    # until there are handlers: the kernel drops a signal that PID 1 of a container neither blocks nor handles
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    options = jsonlib.dumps({"concurrency": concurrency, "queues": queue, "store": store})
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "perdure.cli.supervise", target, options])


@app.command()
def migrate(
    store: StoreOption = None,
    take_blobs: Annotated[
        bool,
        typer.Option(
            "--take-blobs",
            help="After a copy or restore: the blobs are this store's, no other store uses them.",
        ),
    ] = False,
) -> None:
    """Bring the store's tables up to date."""
    import asyncio

    from perdure.settings import Settings
    from perdure.store.open import open_store

    settings = Settings()
    migrated = open_store(store or settings.store, None, settings.direct_url)
    migrated.vectors_by = settings.vectors
    ran = asyncio.run(migrated.migrate())
    if take_blobs:
        from perdure.cli.opened import opened
        from perdure.store.blobs import take_over

        opened(store, lambda app: take_over(app.store, app.blobs))
        ran.append("--take-blobs: they are this store's")
    say_lines("\n".join(f"applied {name}" for name in ran) or "nothing to do: the store is up to date")


@app.command()
def status(
    document: Annotated[
        str | None,
        typer.Argument(help="A document's id, or its first characters (6 or more), to see that one."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it anew every two seconds, until Ctrl-C.")
    ] = False,
    words: WordsOption = None,
    store: StoreOption = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON; with --watch an object per line.")
    ] = False,
) -> None:
    """Show what needs a person, documents by state, queues, workers, services; or one document with its history."""
    from perdure.cli.document import show_document
    from perdure.cli.opened import opened
    from perdure.cli.status import show_overview
    from perdure.cli.status import watch as watching
    from perdure.cli.words import shown
    from perdure.errors import InputInvalid
    from perdure.operate import status

    if watch:
        if document is not None:
            raise InputInvalid("--watch shows the whole store; leave the id out")
        return opened(store, lambda app: watching(app, json))
    if words is not None and document is None:
        raise InputInvalid("--words is for one document; `perdure list --words` is for many")

    async def look(app: AsyncPerdure) -> status.Facts:
        if document:
            return await status.document(app.store, document, words)
        return {**await status.overview(app.store), "store": shown(app.url)}

    facts = opened(store, look)
    if json:
        print(jsonlib.dumps(facts, indent=2))
    else:
        (show_document if document else show_overview)(facts)
    return None


@app.command()
def dependencies(
    store: StoreOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the services that stages need: up or down, since when, why, by whom; and how calls to them went."""
    from perdure.cli.dependencies import show_dependencies
    from perdure.cli.opened import opened
    from perdure.operate.status import dependency_facts

    facts = opened(store, lambda app: dependency_facts(app.store))
    print(jsonlib.dumps(facts, indent=2)) if json else show_dependencies(facts)


@app.command()
def search(
    query: Annotated[str, typer.Argument(help="Words; in quotes, a phrase.")],
    collection: Annotated[str | None, typer.Option(help="Only in this collection.")] = None,
    org: Annotated[str | None, typer.Option(help="The organisation; by default `default`.")] = None,
    document: Annotated[str | None, typer.Option(help="Only in this document.")] = None,
    limit: Annotated[int, typer.Option(help="At most so many passages.", min=1, max=100)] = 10,
    store: StoreOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find passages by words and by meaning."""
    from perdure.cli.search import find, show_hits

    hits = find(store, query, collection=collection, org=org, document=document, limit=limit)
    print(jsonlib.dumps({"hits": hits}, indent=2)) if json else show_hits(hits)


@app.command()
def rerun(
    stage: Annotated[str, typer.Option("--from", metavar="STAGE", help="The stage to run again from.")],
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Which: by model, version, collection, org or state (may be repeated: all must hold).",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count them.")] = False,
    limit: Annotated[int | None, typer.Option(help="At most so many.", min=1)] = None,
    after: Annotated[
        str | None, typer.Option(metavar="ID@ORG", help="Go on where an earlier run ended, as it said.")
    ] = None,
    reason: ReasonOption = "",
    who: WhoOption = None,
    target: AppOption = BUILTIN,
    pipeline: PipelineOption = None,
    store: StoreOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run finished documents again from a stage on, such as those that another model embedded."""
    from perdure.cli.rerun import conditions, run
    from perdure.cli.target import pipeline_of
    from perdure.operate.rerun import RerunOptions

    meant = service(target, store)
    options = RerunOptions(
        pipeline=pipeline or pipeline_of(meant, "document"),
        from_stage=stage, where=conditions(where or []), dry_run=dry_run, limit=limit,
        after=after, reason=reason, who=who,
    )  # fmt: skip
    raise typer.Exit(run(meant, options, json))


@app.command()
def sweep(
    once: Annotated[
        bool, typer.Option("--once", help="One sweep, and tell of it by the exit status.")
    ] = False,
    interval: Annotated[
        float | None,
        typer.Option(
            help="Seconds between sweeps; by default RETRY_JOB_INTERVAL_SECONDS.", min=1, metavar="N"
        ),
    ] = None,
    reason: ReasonOption = "",
    who: WhoOption = None,
    store: StoreOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object per sweep.")] = False,
) -> None:
    """Look for documents that do not get on, and see to leases, due documents and old rows, as workers do, too."""
    from perdure.cli.sweep import run

    raise typer.Exit(run(store, once, interval, json, reason, who))


@app.command()
def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Keep the demo's store and say where it is.")] = False,
    store: Annotated[
        str | None, typer.Option("--store", help="Address of a store to use instead of a temporary one.")
    ] = None,
) -> None:
    """See it work: real documents, a worker killed in the middle of a book, nothing lost, nothing read twice."""
    from perdure.demo.show import run

    sys.exit(run(keep=keep, store=store))


@app.command()
def bench(
    store: Annotated[
        list[str] | None,
        typer.Option(
            "--store", help="sqlite, postgres or postgresql://… (may be repeated); both by default."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Less of everything: under a minute.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object; progress goes to standard error.")
    ] = False,
) -> None:
    """Measure this machine: every rate beside the bare driver doing the same statements in the same run."""
    import asyncio

    from perdure.bench.report import run

    asyncio.run(run(store or ["sqlite", "postgres"], quick, json))


app.add_typer(serving.keys, name="key")
app.add_typer(dead, name="dead")
app.add_typer(webhooks.commands, name="webhook")
for name, listed in looking.COMMANDS.items():
    app.command(name)(listed)
for command in (
    *why.COMMANDS,
    *operator.COMMANDS,
    *contents.COMMANDS,
    *audit.COMMANDS,
    serving.serve,
    simulate,
    metrics,
    rules,
    runbook,
):
    app.command()(command)


@app.command()
def version() -> None:
    """Print the version."""
    from perdure import __version__

    say(__version__)

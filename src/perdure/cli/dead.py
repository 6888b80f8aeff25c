"""`perdure dead …`: what operators do about dead documents. Light: what is heavy is imported by the command that runs.

Documents are named by id, by `NAME.failed` or chosen by options; see docs/dead.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.options import BUILTIN, DocumentArgument, JsonOption, ReasonOption, StoreOption, WhoOption

if TYPE_CHECKING:
    from perdure.cli.dead_asked import Asked

dead = typer.Typer(
    help="Dead documents: why they died, and what to do about them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

FailedArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME.failed]", help="Only those whose stage, collection, pipeline or job is NAME."
    ),
]
WhichArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[ID... | NAME.failed]", help="These; or choose by options.")
]
GroupOption = Annotated[
    str | None, typer.Option(metavar="PREFIX", help="Of this group: how its name begins.")
]
StageOption = Annotated[str | None, typer.Option(help="Died in this stage.")]
CodeOption = Annotated[str | None, typer.Option(help="Died of this code, such as http_404.")]
TypeOption = Annotated[
    str | None, typer.Option("--type", help="Died of this type of error, such as ValueError.")
]
CollectionOption = Annotated[str | None, typer.Option(help="Of this collection.")]
PipelineOption = Annotated[str | None, typer.Option(help="Of this pipeline.")]
JobOption = Annotated[
    str | None, typer.Option("--job", metavar="NAME", help="Follow-up jobs of this name: detect_connections.")
]
QueueOption = Annotated[str | None, typer.Option(help="Of this queue.")]
OrgOption = Annotated[str | None, typer.Option(help="Of this organisation.")]
OlderOption = Annotated[
    str | None, typer.Option("--older-than", metavar="AGE", help="Died longer ago: 2h, 3d.")
]
NewerOption = Annotated[str | None, typer.Option("--newer-than", metavar="AGE", help="Died since: 2h, 3d.")]
AllOption = Annotated[bool, typer.Option("--all", help="All dead documents.")]
DryOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")]
YesOption = Annotated[bool, typer.Option("--yes", "--confirm", help="Do not ask whether that is meant.")]
AppOption = Annotated[
    str,
    typer.Option("--app", metavar="MODULE:APP", help="The app that has their pipelines, if that is yours."),
]


def _asked(names: list[str], everything: bool = True, **options: Any) -> Asked:
    from perdure.cli.dead_asked import asked

    return asked(names, options, everything)


@dead.command("list")
def list_(
    which: FailedArgument = None,
    group: GroupOption = None, stage: StageOption = None, code: CodeOption = None, error_type: TypeOption = None,
    collection: CollectionOption = None, pipeline: PipelineOption = None, queue: QueueOption = None,
    job: JobOption = None, org: OrgOption = None, older_than: OlderOption = None, newer_than: NewerOption = None,
    after: Annotated[str | None, typer.Option(help="Go on from here, as the page before says.")] = None,
    limit: Annotated[int, typer.Option(help="So many.", min=1, max=1000)] = 20,
    store: StoreOption = None, json: JsonOption = False,
) -> None:  # fmt: skip
    """List dead documents and follow-up jobs, those that died last first."""
    from perdure.cli.dead_shown import show_page
    from perdure.cli.opened import opened

    options = _asked(
        [which] if which else [], group=group, stage=stage, code=code, error_type=error_type, collection=collection,
        pipeline=pipeline, queue=queue, job=job, org=org, older_than=older_than, newer_than=newer_than,
    ).chosen()  # fmt: skip
    page, now_ms = opened(store, lambda app: _with_time(app, app.dead(after=after, limit=limit, **options)))
    show_page(page, now_ms, json)


@dead.command()
def groups(
    which: FailedArgument = None,
    group: GroupOption = None, stage: StageOption = None, code: CodeOption = None, error_type: TypeOption = None,
    collection: CollectionOption = None, pipeline: PipelineOption = None, queue: QueueOption = None,
    job: JobOption = None, org: OrgOption = None, older_than: OlderOption = None, newer_than: NewerOption = None,
    limit: Annotated[int, typer.Option(help="The largest so many.", min=1, max=1000)] = 20,
    store: StoreOption = None, json: JsonOption = False,
) -> None:  # fmt: skip
    """Show dead documents and follow-up jobs by cause, and what to do."""
    from perdure.cli.dead_shown import show_groups
    from perdure.cli.opened import opened

    options = _asked(
        [which] if which else [], group=group, stage=stage, code=code, error_type=error_type, collection=collection,
        pipeline=pipeline, queue=queue, job=job, org=org, older_than=older_than, newer_than=newer_than,
    ).chosen()  # fmt: skip
    found, now_ms = opened(store, lambda app: _with_time(app, app.groups(limit=limit, **options)))
    show_groups(found, now_ms, json)


@dead.command()
def inspect(document: DocumentArgument, store: StoreOption = None, json: JsonOption = False) -> None:
    """Show all there is to know about a dead document."""
    from perdure.cli.dead_shown import show_inspected
    from perdure.cli.opened import opened

    found, now_ms = opened(store, lambda app: _with_time(app, app.inspect(document)))
    show_inspected(found, now_ms, json)


@dead.command()
def requeue(
    which: WhichArgument = None,
    group: GroupOption = None, stage: StageOption = None, code: CodeOption = None, error_type: TypeOption = None,
    collection: CollectionOption = None, pipeline: PipelineOption = None, queue: QueueOption = None,
    job: JobOption = None, org: OrgOption = None, older_than: OlderOption = None, newer_than: NewerOption = None,
    everything: AllOption = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="From the beginning, instead of where each died.")
    ] = False,
    canary: Annotated[
        int, typer.Option(metavar="N", min=0, help="N first; the rest only if they are done.")
    ] = 0,
    canary_ok: Annotated[
        float, typer.Option(metavar="SHARE", help="So many of the canaries are enough: 0.8.")
    ] = 1.0,
    canary_wait: Annotated[str, typer.Option(metavar="TIME", help="Wait for them so long.")] = "10m",
    rate: Annotated[str | None, typer.Option(metavar="N/s", help="Not faster: 20/s, 300/m.")] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many.", min=1)] = None,
    dry_run: DryOption = False, yes: YesOption = False,
    each: Annotated[bool, typer.Option("--each", help="Print the answer of each, however many.")] = False,
    reason: ReasonOption = "", who: WhoOption = None, target: AppOption = BUILTIN,
    store: StoreOption = None, json: JsonOption = False,
) -> None:  # fmt: skip
    """Run dead documents and follow-up jobs again: these, a group, or all."""
    from perdure.cli.dead_asked import per_second
    from perdure.cli.dead_done import requeue as run
    from perdure.cli.main import service
    from perdure.operate.choosing import age_ms
    from perdure.operate.requeue import RequeueOptions

    given = _asked(
        which or [], everything, group=group, stage=stage, code=code, error_type=error_type, collection=collection,
        pipeline=pipeline, queue=queue, job=job, org=org, older_than=older_than, newer_than=newer_than,
    )  # fmt: skip
    how = RequeueOptions(
        fresh=fresh, dry_run=dry_run, canary=canary, canary_ok=canary_ok, canary_wait_s=age_ms(canary_wait) / 1000,
        rate=None if rate is None else per_second(rate), limit=limit, reason=reason, who=who,
    )  # fmt: skip
    raise typer.Exit(run(service(target, store), given, how, yes=yes, each=each, as_json=json))


@dead.command()
def export(
    which: WhichArgument = None,
    group: GroupOption = None, stage: StageOption = None, code: CodeOption = None, error_type: TypeOption = None,
    collection: CollectionOption = None, pipeline: PipelineOption = None, queue: QueueOption = None,
    org: OrgOption = None, older_than: OlderOption = None, newer_than: NewerOption = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Where to; - is standard output, .gz is packed.")
    ] = "-",
    reason: ReasonOption = "", who: WhoOption = None, store: StoreOption = None, json: JsonOption = False,
) -> None:  # fmt: skip
    """Write dead documents to a file, a JSON object per line, with all it takes to bring them back."""
    from perdure.cli.dead_done import export as run
    from perdure.service import AsyncPerdure

    given = _asked(
        which or [], group=group, stage=stage, code=code, error_type=error_type, collection=collection,
        pipeline=pipeline, queue=queue, org=org, older_than=older_than, newer_than=newer_than,
    )  # fmt: skip
    raise typer.Exit(run(AsyncPerdure(store), given, output, who, json, reason))


@dead.command("import")
def import_(
    source: Annotated[str, typer.Argument(metavar="FILE", help="What export or purge wrote; - is standard input.")],
    each: Annotated[bool, typer.Option("--each", help="Print the answer of each, however many.")] = False,
    reason: ReasonOption = "", who: WhoOption = None, store: StoreOption = None, json: JsonOption = False,
) -> None:  # fmt: skip
    """Bring exported documents back: dead, with their history, ready to be requeued."""
    from perdure.cli.dead_done import import_ as run
    from perdure.service import AsyncPerdure

    raise typer.Exit(run(AsyncPerdure(store), source, who, each, json, reason))


@dead.command()
def purge(
    which: WhichArgument = None,
    group: GroupOption = None, stage: StageOption = None, code: CodeOption = None, error_type: TypeOption = None,
    collection: CollectionOption = None, pipeline: PipelineOption = None, queue: QueueOption = None,
    org: OrgOption = None, older_than: OlderOption = None, newer_than: NewerOption = None,
    everything: AllOption = False,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Export to this file; by default one named by the time."),
    ] = None,
    no_export: Annotated[
        bool, typer.Option("--no-export", help="Delete them for ever; only with --confirm.")
    ] = False,
    dry_run: DryOption = False, yes: YesOption = False,
    each: Annotated[bool, typer.Option("--each", help="Print the answer of each, however many.")] = False,
    reason: ReasonOption = "", who: WhoOption = None, store: StoreOption = None, json: JsonOption = False,
) -> None:  # fmt: skip
    """Delete dead documents with everything that is theirs; they are exported first."""
    from perdure.cli.dead_done import Purge
    from perdure.cli.dead_done import purge as run
    from perdure.service import AsyncPerdure

    given = _asked(
        which or [], everything, group=group, stage=stage, code=code, error_type=error_type, collection=collection,
        pipeline=pipeline, queue=queue, org=org, older_than=older_than, newer_than=newer_than,
    )  # fmt: skip
    how = Purge(output, no_export, dry_run, yes, each, reason, who)
    raise typer.Exit(run(AsyncPerdure(store), given, how, json))


async def _with_time(app: Any, asked: Any) -> Any:
    """What was asked for, and the time of the store."""
    return await asked, await app.store.now_ms()

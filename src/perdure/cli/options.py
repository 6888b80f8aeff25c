"""Options that many commands take. Light: `--help` imports this."""

from __future__ import annotations

from typing import Annotated

import typer

BUILTIN = "perdure.cli.builtin:app"

StoreOption = Annotated[
    str | None,
    typer.Option("--store", help="Address of the store; by default PERDURE_STORE or sqlite:///perdure.db."),
]
AppOption = Annotated[
    str,
    typer.Option(
        "--app", metavar="MODULE:APP", help="An app of your own; with --pipeline if it has several."
    ),
]
PipelineOption = Annotated[
    str | None, typer.Option(help="Its pipeline; by default document, or the only one of your app.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ReasonOption = Annotated[str, typer.Option(help="Why, for whoever looks at `perdure acts`.")]
WhoOption = Annotated[
    str | None,
    typer.Option(help="In whose name; by default PERDURE_OPERATOR or the user's name."),
]
DocumentArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The document's id, or its first characters (6 or more).")
]
WordsOption = Annotated[
    str | None, typer.Option(metavar="SYSTEM", help="States in the words of bullmq, documents or images.")
]

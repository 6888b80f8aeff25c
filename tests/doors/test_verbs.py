"""The same verbs at every door: the awaited and the blocking library, the command line, HTTP and its client.

A row that names no verb at a door says why. A verb that comes at one door and is not in the table fails, too.
"""

from __future__ import annotations

import inspect
from typing import NamedTuple

import pytest
import typer.main

from perdure.app import AsyncPerdure, Perdure
from perdure.cli.main import app as command_line
from perdure.client import AsyncClient, Client
from tests.api.server import paths_of_openapi

V3 = "/v3/documents/{id}"


class Verb(NamedTuple):
    """How one verb is called at each door; None: not there, `why` says why."""

    library: str | None
    command: str | None
    route: str | None
    why: str = ""
    changes: bool = False  # then the command takes --json, --who and --reason
    client: str | None = None


HOST = "it concerns the host that runs the command"
LOCAL = "it runs code of this process"
SHOWN = "perdure show ID has it"
VERBS = (
    Verb("add", "add", "POST /v3/documents", client="add"),
    Verb("add_many", "add", "POST /v3/documents/bulk", client="add_many"),
    Verb("status", "status", f"GET {V3}", client="get"),
    Verb("documents", "list", "GET /v3/documents", client="documents"),
    Verb("overview", "status", "GET /v3/status"),
    Verb("why", "why", f"GET {V3}/why"),
    Verb("timeline", "timeline", f"GET {V3}/timeline"),
    Verb("timeline_page", "timeline", f"GET {V3}/timeline"),
    Verb("attempts", "status", f"GET {V3}/attempts", client="attempts"),
    Verb("content", "content", f"GET {V3}/content"),
    Verb("output", "show", f"GET {V3}/stages/{{stage}}"),
    Verb("rows", "show", f"GET {V3}/rows/{{name}}"),
    Verb("chunks", "show", f"GET {V3}/chunks", client="chunks"),
    Verb("connections", "show", f"GET {V3}/connections"),
    Verb("search", "search", "GET /v3/search", client="search"),
    Verb("happened", "events", "GET /v3/events"),
    Verb("requeue", "requeue", f"POST {V3}/requeue", changes=True, client="requeue"),
    Verb("cancel", "cancel", f"POST {V3}/cancel", changes=True, client="cancel"),
    Verb("delete", "delete", f"DELETE {V3}", changes=True, client="delete"),
    Verb("priority", "priority", f"POST {V3}/priority", changes=True),
    Verb("raise_", "priority", None, "it is the priority `first` there, and 100 over HTTP", changes=True),
    Verb("rerun", "rerun", "POST /v3/rerun", changes=True),
    Verb("remote_finish", None, f"POST {V3}/remote/finish", "services call it, not people"),
    Verb("remote_fail", None, f"POST {V3}/remote/fail", "services call it, not people"),
    Verb("remote_beat", None, f"POST {V3}/remote/beat", "services call it, not people"),
    Verb("dead", "dead list", "GET /v3/dead"),
    Verb("groups", "dead groups", "GET /v3/dead/groups"),
    Verb("inspect", "dead inspect", "GET /v3/dead/{id}"),
    Verb("requeue_dead", "dead requeue", "POST /v3/dead/requeue", changes=True),
    Verb("export", "dead export", "GET /v3/dead/export", changes=True),
    Verb("import_", "dead import", "POST /v3/dead/import", changes=True),
    Verb("purge", "dead purge", "POST /v3/dead/purge", changes=True),
    Verb("pause", "pause", "POST /v3/queues/{name}/pause", changes=True),
    Verb("resume", "resume", "POST /v3/queues/{name}/resume", changes=True),
    Verb("hold", "hold", "POST /v3/dependencies/{name}/hold", changes=True),
    Verb("release", "release", "POST /v3/dependencies/{name}/release", changes=True),
    Verb("dependencies", "dependencies", "GET /v3/dependencies"),
    Verb("kpis", "dependencies", "GET /v3/dependencies"),
    Verb("limit", "limit", "POST /v3/limits", changes=True),
    Verb("limits", "limit", "GET /v3/limits"),
    Verb("sweep", "sweep", "POST /v3/sweep", changes=True),
    Verb("audit", "audit", "POST /v3/audit", changes=True),
    Verb("acts", "acts", "GET /v3/acts"),
    Verb("escalation", "status", "GET /v3/status"),
    Verb("add_webhook", "webhook add", "POST /v3/webhooks", changes=True),
    Verb("webhooks", "webhook list", "GET /v3/webhooks"),
    Verb("remove_webhook", "webhook remove", "DELETE /v3/webhooks/{id}", changes=True),
    Verb("deliveries", "webhook deliveries", "GET /v3/webhooks/deliveries"),
    Verb("retry_deliveries", "webhook retry", "POST /v3/webhooks/deliveries/retry", changes=True),
    Verb(
        "add_key",
        "key add",
        None,
        "who may make keys may do all; they are made beside the store",
        changes=True,
    ),
    Verb("keys", "key list", None, "as add_key"),
    Verb("revoke_key", "key revoke", None, "as add_key", changes=True),
    Verb("weigh", None, None, "a setting of the fleet, made once in code"),
    Verb("retain", "sweep", "POST /v3/sweep"),
    Verb("subscribe", None, "GET /v3/events", LOCAL),
    Verb("run", "worker", None, LOCAL),
    Verb("run_until_idle", "add", None, "`perdure add --work` does it"),
)
#: Verbs of the awaited library that are pieces of others, or belong to its life and not to its documents.
PIECES = {
    "add_once", "check_settings", "choose", "close", "export_streaming", "exporting", "importing", "key",
    "known_limit_key", "measure", "needed", "new_crew", "new_nursery", "new_worker", "output_saved", "purging",
    "readiness", "requeuing", "rerunning", "retaining", "standing", "start", "stop", "summary", "sweeping",
    "under_way", "use", "warm", "work",
}  # fmt: skip
#: Commands about the installation, and pages over several verbs.
COMMANDS = {"bench", "demo", "metrics", "migrate", "rules", "runbook", "serve", "show", "simulate", "version"}
ROUTES = {
    "GET /healthz", "GET /metrics", "GET /readyz", "GET /v3/audit", "GET /v3/queues", "GET /v3/workers",
    "POST /v3/webhooks/deliveries/{id}/retry",
}  # fmt: skip
#: Pieces of a document that have a route of their own, and that the library reads as an output or as rows.
PARTS = {f"GET {V3}/variants", f"GET {V3}/variants/{{name}}"}


def commands() -> dict[str, set[str]]:
    """Every command with its options."""
    found: dict[str, set[str]] = {}

    def walk(command: object, name: str) -> None:
        for word, inner in getattr(command, "commands", {}).items():
            walk(inner, f"{name} {word}".strip())
        if not hasattr(command, "commands"):
            found[name] = {option for one in command.params for option in one.opts}  # type: ignore[attr-defined]

    walk(typer.main.get_command(command_line), "")
    return found


def routes() -> set[str]:
    return {f"{method.upper()} {path}" for path, methods in paths_of_openapi().items() for method in methods}


def verbs_of(door: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(door, inspect.isfunction) if not name.startswith("_")}


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.library)
def test_a_verb_is_at_every_door_or_says_why_not(verb: Verb) -> None:
    assert verb.library in verbs_of(AsyncPerdure)
    assert verb.library in verbs_of(Perdure)
    assert (None not in (verb.command, verb.route)) or verb.why
    if verb.command is not None:
        assert verb.command in commands()
    if verb.route is not None:
        assert verb.route in routes()
    if verb.client is not None:
        assert verb.client in verbs_of(Client) & verbs_of(AsyncClient)


@pytest.mark.parametrize(
    "verb", [verb for verb in VERBS if verb.changes and verb.command], ids=lambda v: v.command
)
def test_a_command_that_changes_something_takes_json_who_and_reason(verb: Verb) -> None:
    assert {"--json", "--who", "--reason"} <= commands()[verb.command or ""]


def test_both_libraries_have_the_same_verbs_and_all_are_in_the_table() -> None:
    told = {verb.library for verb in VERBS}
    assert verbs_of(Perdure) == told
    assert verbs_of(AsyncPerdure) - PIECES == told


def test_both_libraries_take_the_same_of_each_verb() -> None:
    for name in verbs_of(Perdure) - {"run", "run_until_idle", "subscribe"}:
        plain, awaited = (
            inspect.signature(getattr(door, name)).parameters for door in (Perdure, AsyncPerdure)
        )
        assert list(plain) == list(awaited), name


def test_every_command_is_in_the_table() -> None:
    assert set(commands()) == {verb.command for verb in VERBS if verb.command} | COMMANDS & set(commands())


def test_every_route_is_in_the_table() -> None:
    assert routes() - PARTS == {verb.route for verb in VERBS if verb.route} | ROUTES


def test_both_clients_have_the_same_verbs() -> None:
    assert verbs_of(Client) == verbs_of(AsyncClient)

"""Names, errors and metadata of others reach a terminal as text: no command prints what a terminal obeys."""

from __future__ import annotations

import ast
import asyncio
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

import perdure.cli
from perdure import Document, Permanent, Pipeline, Result, Row
from perdure.cli.main import app as command
from perdure.cli.main import main
from perdure.cli.saying import visible
from perdure.store.feed import NAMES
from perdure.store.open import open_store
from perdure.store.webhooks import Ended, Webhook
from perdure.testing import drain, trial

#: Clears the screen, sets the title, C1 controls, text backwards, a line that looks like ours, a bell.
EVIL = "a\x1b[2Jb\x1b]0;t\x07c\x9b31md\u202ee\u2066f\nperdure: forged [ok]\rg\x85h\u2028i"
HOSTILE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
OWN = re.compile(r"\x1b\[(?:[0-9;]*m|\?25[lh]|1A|2K)|\r(?=\x1b)")  # styles, and a line that is drawn again

evil = Pipeline("evil", attempts=1)


@evil.stage
def read(doc: Document) -> Result[dict[str, str]]:
    if doc.name.startswith("dead"):
        raise Permanent("bad", EVIL)
    return Result({"text": EVIL}, rows=[Row("words", n=1, data=EVIL)])


@evil.stage(needs=["ocr"])
def look(doc: Document) -> int:
    return 1


@pytest.fixture
def hostile(tmp_path: Path) -> tuple[str, str, str]:
    """A store full of it; the ids of a document that is held and of a dead one."""
    url = f"sqlite:///{tmp_path}/perdure.db"
    with trial(evil, store=url) as app:
        app.hold("ocr", EVIL, who=EVIL)
        more: Any = {"meta": {EVIL: EVIL}, "collection": EVIL}
        held = app.add(text="held", name=f"held {EVIL}", pipeline=evil, **more).id
        dead = app.add(text="dead", name=f"dead {EVIL}", pipeline=evil, **more).id
        drain(app)
        app.limit(EVIL, concurrency=1, new=True)
    asyncio.run(_more(url))
    return url, held, dead


async def _more(url: str) -> None:
    store = open_store(url)
    await store.open()
    try:
        await store.add_key("acme", EVIL, ("read",), EVIL)
        await store.register("worker", EVIL, (EVIL,))
        await store.add_webhook(
            Webhook("w" * 16, "default", f"https://x.example/{EVIL}", NAMES, "s", "0-0", 0), EVIL
        )
        (webhook,) = await store.webhooks()
        await store.tell_webhook(webhook, await store.feed("default", "0-0", 10))
        for one in await store.deliveries("default"):
            await store.end_deliveries([Ended(one.id, "dead", error=EVIL)])
    finally:
        await store.close()


#: Every command that prints what others wrote. Those that change something come last.
CALLS: tuple[tuple[str, ...], ...] = (
    ("status",), ("status", "HELD"), ("status", "DEAD"), ("status", EVIL), ("list",), ("list", "--state", EVIL),
    ("show", "HELD"), ("show", "HELD", "--stage", "read"), ("show", "HELD", "--rows", "words"),
    ("show", "HELD", "--chunks"), ("show", "HELD", "--connections"), ("show", "HELD", "--stage", EVIL),
    ("why", "HELD"), ("why", "DEAD"), ("why", EVIL),
    ("content", EVIL), ("delete", EVIL), ("events",), ("timeline", "HELD"), ("timeline", "DEAD"), ("search", "held"),
    ("dependencies",), ("acts",), ("audit",), ("sweep", "--once"), ("metrics",), ("limit",), ("dead", "list"),
    ("dead", "groups"), ("dead", "inspect", "DEAD"), ("key", "list"), ("webhook", "list"), ("webhook", "deliveries"),
    ("webhook", "retry", EVIL), ("webhook", "remove", EVIL), ("webhook", "add", f"https://x{EVIL}"),
    ("key", "add", EVIL), ("key", "revoke", EVIL), ("hold", EVIL, "--reason", EVIL), ("release", EVIL), ("pause", EVIL),
    ("resume", EVIL), ("limit", EVIL, "--concurrency", "2"), ("priority", "HELD", "5"), ("priority", EVIL, "5"),
    ("add", "--text", "x", "--name", EVIL, "--collection", EVIL), ("add", EVIL), ("add", f"https://{EVIL}"),
    ("rerun", "--from", EVIL), ("requeue", EVIL), ("dead", "requeue", "DEAD", "--reason", EVIL, "--yes"),
    ("dead", "export", EVIL, "--all"), ("dead", "import", EVIL),
    ("dead", "purge", "DEAD", EVIL, "--no-export", "--yes"), ("cancel", "HELD", "--reason", EVIL), ("cancel", EVIL),
)  # fmt: skip
#: These run until they are stopped, or print nothing of others.
OTHERS = {"worker", "serve", "demo", "bench", "migrate", "version", "rules", "runbook", "simulate"}


def _commands(group: typer.Typer) -> set[str]:
    """The first word of each command."""
    return {c.name or (c.callback.__name__ if c.callback else "") for c in group.registered_commands} | {
        str(g.name) for g in group.registered_groups
    }


def test_every_command_is_tried() -> None:
    assert {call[0] for call in CALLS} | OTHERS == _commands(command)


@pytest.mark.full
@pytest.mark.parametrize("colour", [False, True])
def test_no_command_prints_what_a_terminal_obeys(
    hostile: tuple[str, str, str],
    colour: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url, held, dead = hostile
    monkeypatch.setenv("PERDURE_STORE", url)
    monkeypatch.setenv("FORCE_COLOR" if colour else "NO_COLOR", "1")
    told = ""
    for call in CALLS:
        words = [{"HELD": held, "DEAD": dead}.get(word, word) for word in call]
        monkeypatch.setattr("sys.argv", ["perdure", *words])
        with suppress(SystemExit):
            main()
        said = "".join(capsys.readouterr())
        assert said, call
        ours = OWN.sub("", said)
        assert not HOSTILE.findall(ours), (call, ours)
        assert not re.search("^perdure: forged", ours, re.MULTILINE), (call, ours)
        told += ours
    assert "\\u001b[2J" in told  # it was there to be printed


def test_json_stays_exact(
    hostile: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url, held, dead = hostile
    monkeypatch.setenv("PERDURE_STORE", url)

    def said(*words: str) -> Any:
        monkeypatch.setattr("sys.argv", ["perdure", *words, "--json"])
        with suppress(SystemExit):
            main()
        out = capsys.readouterr().out
        assert not HOSTILE.findall(out)
        return json.loads(out)

    assert said("show", held)["meta"] == {EVIL: EVIL}
    assert said("show", held, "--stage", "read")["output"] == {"text": EVIL}
    assert said("status", held)["name"] == f"held {EVIL}"
    assert said("status", dead)["error"]["message"] == EVIL
    assert said("list")["documents"][0]["collection"] == EVIL


def test_commands_print_through_what_is_safe() -> None:
    """`print` is for JSON only, and there is one kind of console."""
    for path in Path(str(perdure.cli.__file__)).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            if path.name == "saying.py" or called not in ("print", "Console"):
                continue
            said = ast.unparse(node)
            assert "dumps(" in said, (path.name, said)
            assert "ensure_ascii" not in said, (path.name, said)


@given(st.text())
def test_what_is_shown_is_one_line_and_parses_back(text: str) -> None:
    assert not HOSTILE.findall(visible(text))
    assert "\n" not in visible(text)
    assert json.loads(visible(json.dumps(text, ensure_ascii=False))) == text

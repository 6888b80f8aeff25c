"""A secret of a setting is nowhere: not in output, logs, rows of the store or answers of the server."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from perdure import errors
from perdure.cli.main import main
from perdure.errors import SettingInvalid, address_shown, redacted
from perdure.settings import ADDRESSES, SECRETS, SECRETS_OF_OTHERS, Settings, variable
from perdure.store.blobs import DirectoryBlobs, open_blobs
from perdure.store.open import open_store
from tests.api.served import new_key, served
from tests.doors.command import COMMAND, environment, facts, perdure, succeeded

CANARY = "hunter2canary"
ROOT = Path(__file__).parents[2]
#: Wrong in many ways: scheme, slashes, port, characters that should have been encoded, nobody there.
SCHEMES = (
    "postgresql://",
    "postgres:/",
    "postgresql:",
    "mysql://",
    "sqlite://",
    "Postgresql://",
    "s3://",
    "htp://",
    "",
)
WRONG = (
    ("me", CANARY, "1"), ("me", CANARY, "port"), ("", CANARY, "1"), ("me", f"a/{CANARY}", "1"),
    ("me", f"{CANARY}#b", "1"), ("me", f"a@{CANARY}", "1"), ("me", f"a?{CANARY}", "1"), ("me", f"a b{CANARY}", "1"),
    ("me", f"{CANARY}'\"", "1"), ("me", f"[{CANARY}", "1"),
)  # fmt: skip
MISTYPED = [
    *(f"{scheme}{user}:{word}@127.0.0.1:{port}/db" for scheme in SCHEMES for user, word, port in WRONG),
    f"postgresql://127.0.0.1:1/db?password={CANARY}",
    f"postgresql://127.0.0.1:x/db?user=me&password={CANARY}",
]


def refused(use: Callable[[], object]) -> str:
    """What it says, good or bad."""
    try:
        return repr(use())
    except SettingInvalid as error:
        return str(error)


@pytest.mark.parametrize("address", MISTYPED)
def test_a_mistyped_address_is_shown_without_its_password(address: str) -> None:
    assert CANARY not in address_shown(address)
    assert CANARY not in refused(lambda: open_store(address))
    assert CANARY not in refused(lambda: open_blobs(address, lambda: DirectoryBlobs(Path())))
    for name in ("summary_url", "pushgateway_url", "store", "concurrency"):
        assert CANARY not in refused(partial(Settings, **{name: address}))


@pytest.mark.parametrize(
    "address",
    [pytest.param(one, marks=pytest.mark.full if n % 9 else ()) for n, one in enumerate(MISTYPED)],
)
def test_no_command_prints_the_password_of_an_address(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, words in (
        ("PERDURE_STORE", ("status",)), ("PERDURE_BLOBS", ("add", "--text", "x")), ("PERDURE_SUMMARY_URL", ("list",)),
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setenv(name, address)
            patch.setattr("sys.argv", ["perdure", *words])
            with suppress(SystemExit):
                main()
        assert CANARY not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cannot reach https://me:pass@word@x.example/a?b=c@d now", "cannot reach https://me:***@d now"),
        ("'https://TOKEN@x.example/'", "'https://***@x.example/'"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("https://x.example/?api_key=abc&page=2", "https://x.example/?api_key=***&page=2"),
        ("mail me@x.example or see https://x.example/@me", "mail me@x.example or see https://x.example/@me"),
        ("a = b, c == d @ e", "a = b, c == d @ e"),
    ],
)
def test_text_without_passwords(text: str, said: str) -> None:
    assert redacted(text) == said


def test_a_secret_that_is_a_part_of_another_leaves_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_hidden", ())
    for value in ("letmein", "letmein-please", " letmein-please-now\n", "short", None):
        errors.hide(value)
    assert redacted("letmein-please-now, letmein-please, letmein, short") == "***, ***, ***, short"


def test_each_key_and_a_password_among_the_parameters_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_hidden", ())
    Settings(store="postgresql:///db?user=me&password=open%20sesame", secret_key=f"{'a' * 32}, {'b' * 32}")
    assert redacted(f"{'a' * 32} {'b' * 32} open sesame open%20sesame") == "*** *** *** ***"


@pytest.mark.parametrize("word", ["perdure", "postgres"])
def test_a_password_that_is_a_name_of_its_address_takes_no_words_out_of_messages(
    monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.setattr(errors, "_hidden", ())
    address = f"postgresql://{word}:{word}@localhost/perdure"
    Settings(store=address)
    assert redacted("run `perdure migrate` on postgres") == "run `perdure migrate` on postgres"
    assert redacted(f"cannot reach {address}") == f"cannot reach postgresql://{word}:***@localhost/perdure"


def _variables(directory: Path) -> dict[str, Any]:
    """Every setting that may carry a secret has one, and nobody is at the addresses."""
    secret = {variable(name): f"{CANARY}-{name}-0123456789abcdef" for name in SECRETS}
    other = {name: f"{CANARY}-{name}" for name in SECRETS_OF_OTHERS}
    address = {variable(name): f"http://me:{CANARY}-{name}@127.0.0.1:1/v1" for name in ADDRESSES}
    address |= {
        "PERDURE_STORE": f"sqlite:///{directory}/perdure.db",
        "PERDURE_DIRECT_URL": f"postgresql://me:{CANARY}@127.0.0.1:1/db",
    }
    del address["PERDURE_BLOBS"]
    return {
        **secret, **other, **address, "METRICS_BACKEND": "prometheus_pushgateway", "RABBITMQ_HOST": "127.0.0.1",
        "RABBITMQ_PORT": "1", "PYTHONPATH": str(ROOT), "PERDURE_ALLOW_LOOPBACK": "true", "PERDURE_LOG_LEVEL": "DEBUG",
    }  # fmt: skip


@pytest.mark.full
def test_no_secret_leaves_a_worker_or_a_server(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    variables = _variables(tmp_path)
    store, target = variables["PERDURE_STORE"], "tests.doors.leaking:app"
    names = [name for name, value in variables.items() if CANARY in value]
    ids = []
    leaking = ("--app", target, "--pipeline", "leaking")
    for n, name in enumerate(names):
        how = ("permanent", "header", "url", "plain")[n % 4]
        answer = succeeded("add", "--text", f"{name} {how}", *leaking, cwd=ROOT, **variables)
        ids.append(answer.split()[1])
    succeeded("add", "--text", "words to be embedded", cwd=ROOT, **variables)
    logs = tmp_path / "worker.log"
    with logs.open("wb") as log:
        worker = subprocess.Popen(
            [*COMMAND, "worker", target], cwd=ROOT, env=environment(**variables), stdout=log, stderr=log
        )
        until_s = time.monotonic() + 120
        while facts("--store", store)["documents"]["dead"] < len(ids):
            assert worker.poll() is None, logs.read_text()
            assert time.monotonic() < until_s, logs.read_text()
            time.sleep(0.2)
        worker.send_signal(signal.SIGTERM)
        worker.wait(60)
    said = [logs.read_text()]
    for words in (
        ("status",),
        ("dead", "list"),
        ("dead", "groups"),
        ("sweep", "--once"),
        ("list",),
        ("acts",),
    ):
        said += [_output(*words, **variables), _output(*words, "--json", **variables)]
    for word in ("why", "status", "timeline"):
        said += [_output(word, id_, **variables) for id_ in ids]
    said += [_output("dead", "inspect", id_, **variables) for id_ in ids]
    key = new_key(store, "default")
    with served(store, target=target, **variables) as url:
        caller = httpx2.Client(headers={"Authorization": f"Bearer {key}"}, timeout=60)
        paths = [
            "/v3/documents",
            *(f"/v3/documents/{id_}" for id_ in ids),
            "/v3/dead",
            "/readyz",
            "/metrics",
            "/x",
        ]
        said += [caller.get(f"{url}{path}").text for path in paths]
        said.append(caller.post(f"{url}/v3/documents", json={"url": f"http://me:{CANARY}@x.example/"}).text)
    said += capfd.readouterr()
    with closing(sqlite3.connect(tmp_path / "perdure.db")) as connection:
        said += list(connection.iterdump())
    found = [line for text in said for line in text.splitlines() if CANARY in line]
    assert not found, found[:5]
    assert "***" in logs.read_text()


def _output(*words: str, **variables: Any) -> str:
    ended = perdure(*words, cwd=ROOT, **variables)
    return ended.stdout + ended.stderr

"""A secret of a setting is in no message, however its address is mistyped. `test_secrets` looks everywhere else."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from perdure import errors
from perdure.cli.main import main
from perdure.errors import SettingInvalid, address_shown, redacted
from perdure.settings import Settings
from perdure.store.blobs import DirectoryBlobs, open_blobs
from perdure.store.open import open_store

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

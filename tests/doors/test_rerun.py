"""`perdure rerun`: what a user types, and what is said."""

from __future__ import annotations

import json
from pathlib import Path

from tests.doors.command import perdure, refused, succeeded


def test_a_new_embedder(store_url: str) -> None:
    on = ("--store", store_url)
    succeeded(
        "add", "--text", "Whales sing in the sea.", "--work", *on, timeout=60, PERDURE_EMBEDDER="hashing"
    )
    asked = (
        "rerun",
        "--from",
        "embed",
        "--where",
        "model=lexical-hashing-384",
        "--where",
        "org=default",
        *on,
    )

    assert succeeded(*asked, "--dry-run") == (
        "1 found, a dry run: nothing was requeued\nsaved by lexical-hashing-384: 1\n"
    )
    assert succeeded(*asked, "--reason", "a better one") == "1 found, 1 requeued\n"
    again = json.loads(succeeded(*asked, "--json"))
    assert (again["found"], again["requeued"], again["running"]) == (0, 0, 1)


def test_mistakes(tmp_path: Path) -> None:
    on = ("--store", f"sqlite:///{tmp_path}/p.db")
    refused(1, "store_unavailable", "rerun", "--from", "embed", "--where", "model=x", *on)
    succeeded("migrate", *on)
    refused(2, "model_unknown", "rerun", "--from", "embed", "--where", "model=x", *on)
    refused(2, "stage_unknown", "rerun", "--from", "bed", "--where", "model=x", *on)
    refused(2, "where_unknown", "rerun", "--from", "embed", "--where", "colour=x", *on)
    refused(2, "input_invalid", "rerun", "--from", "embed", *on)
    refused(2, "input_invalid", "rerun", "--from", "embed", "--where", "model", *on)
    assert perdure("rerun", "--where", "model=x", *on).returncode == 2

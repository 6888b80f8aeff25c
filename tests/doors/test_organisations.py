"""Commands that find nothing in one organisation name others that have something."""

from __future__ import annotations

from pathlib import Path

from tests.doors.command import perdure, succeeded


def test_a_search_in_an_organisation_without_documents_names_others(tmp_path: Path) -> None:
    on = ("--store", f"sqlite:///{tmp_path}/p.db")
    succeeded("add", "--text", "some words", "--org", "acme", *on)

    assert "--org acme" in perdure("search", "else", *on).stderr
    assert "--org" not in perdure("search", "else", "--org", "acme", *on).stderr


def test_webhooks_of_other_organisations_are_hinted_at(tmp_path: Path) -> None:
    on = ("--store", f"sqlite:///{tmp_path}/p.db")
    assert "webhook add URL" in _none(*on)
    succeeded("webhook", "add", "https://example.org/hook", "--org", "acme", *on)

    for command in ("list", "deliveries", "retry"):
        assert "--org acme" in perdure("webhook", command, *on).stderr, command
        assert "--org" not in perdure("webhook", command, "--org", "acme", *on).stderr, command


def _none(*on: str) -> str:
    succeeded("migrate", *on)
    return perdure("webhook", "list", *on).stderr

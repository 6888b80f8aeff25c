"""Runbooks are in the package, named by their alerts, and linked from the rules at an address that is a setting."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from perdure.cli.main import app as command
from perdure.errors import InputInvalid
from perdure.watch.runbooks import names, rules, runbook
from tests.debian import ROOT


def test_an_alert_finds_its_page_by_any_way_to_write_it() -> None:
    assert runbook("NoWorkers") == runbook("no-workers") == runbook("no-workers.md") == runbook("no_workers")
    assert runbook("NoWorkers").startswith("# NoWorkers")
    with pytest.raises(InputInvalid, match="did you mean: no-workers"):
        runbook("noworker")
    with pytest.raises(InputInvalid, match="perdure runbook"):
        runbook("../../etc/passwd")


def test_the_command_lists_and_prints() -> None:
    run = CliRunner()
    listed = run.invoke(command, ["runbook"]).output
    assert all(name in listed for name in names())
    assert "perdure dead groups" in run.invoke(command, ["runbook", "escalation-tier-3"]).output


def test_links_of_the_rules_are_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_RUNBOOK_URL", "https://wiki.example/perdure/{name}")
    shown = CliRunner().invoke(command, ["rules"]).output
    found = [
        rule["annotations"]["runbook_url"]
        for group in yaml.safe_load(shown)["groups"]
        for rule in group["rules"]
    ]
    assert "https://wiki.example/perdure/no-workers" in found
    assert all(url.startswith("https://wiki.example/perdure/") for url in found)
    assert "runbook_url: https://wiki.example/x/no-workers.md\n" in rules("https://wiki.example/x/")


@pytest.mark.full
def test_a_wheel_has_them(tmp_path: Path) -> None:
    built = [str(Path(sys.executable).with_name("uv")), "build", "--wheel", "-o", str(tmp_path), str(ROOT)]
    subprocess.run(built, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    packed = {Path(name).stem for name in zipfile.ZipFile(wheel).namelist() if "perdure/runbooks/" in name}
    assert packed == set(names())

"""A worker that cannot start says why and ends; one that started outlives its child, however often that dies."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.faults.fleet import Fleet

USAGE = 2


@pytest.mark.parametrize(
    ("target", "source", "saying"),
    [
        ("nowhere:app", None, "there is no module 'nowhere' here"),
        ("broken:app", "raise RuntimeError('broken on purpose')", "RuntimeError: broken on purpose"),
        ("lacking:app", "import no_such_library", "No module named 'no_such_library'"),
        ("torn:app", "def (:", "SyntaxError"),
        ("other:app", "app = 3", "'other:app' is not a Perdure app"),
        ("nameless", None, "does not name an app"),
    ],
)
def test_app_that_cannot_be_imported(
    local_fleet: Fleet, tmp_path: Path, target: str, source: str | None, saying: str
) -> None:
    """Exit status 2 and one clear line; no restart loop."""
    if source is not None:
        (tmp_path / f"{target.partition(':')[0]}.py").write_text(source)
    arguments = ["-m", "perdure", "worker", target]
    worker = local_fleet.run(arguments)
    assert worker.exit(20) == USAGE
    assert saying in worker.said
    assert worker.said.count("perdure worker: ") == 1, "said once, so tried once"
    local_fleet.wait_until_gone(worker)


def test_supervisor_outlives_its_children(fleet: Fleet) -> None:
    """Three deaths in a row, each in the middle of a stage."""
    fleet.shut("one", "begin")
    fleet.add("second", {"one": "0"})
    worker = fleet.start("seconds")
    for death in range(3):
        fleet.wait(lambda death=death: len(fleet.starts("one")) == death + 1, "the stage to begin")  # type: ignore[misc]
        worker.kill_child()
    fleet.open("one", "begin")
    fleet.wait_until_ended()
    status = fleet.status("one")
    assert (status.state, status.attempts_made, status.claims) == ("done", 1, 4)
    assert len(fleet.starts("one")) == 4
    assert worker.process.poll() is None
    assert worker.said.count('"worker lost"') == 3
    began_s = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - began_s < 5

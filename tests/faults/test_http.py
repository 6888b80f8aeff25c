"""The HTTP server is killed while clients upload: what it acknowledged is there and ends, nothing is there twice."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.fleet import Fleet
from tests.faults.uploading import Uploads


@pytest.mark.parametrize(
    ("number", "kills"),
    [(100, 2), pytest.param(1000, 12, marks=[pytest.mark.long, pytest.mark.timeout(1_800)])],
)
def test_uploads_survive_the_death_of_the_server(
    store_url: str, tmp_path: Path, number: int, kills: int
) -> None:
    with Fleet(store_url, tmp_path, server_old=False) as fleet:
        uploads = Uploads(fleet, number, threads=8, rng=random.Random(number))
        uploads.run(kills)
        assert uploads.kills == kills
        assert uploads.broken, "no request was under way when the server died"
        assert len(uploads.taken) == len(set(uploads.taken.values())) == number

        fleet.wait(
            lambda: fleet.tally().documents.get("done") == number, "all documents to be done", 120, look_s=0.2
        )
        found = {one.name: one for one in fleet.statuses().values()}
        assert fleet.query("SELECT count(*) FROM document")[0][0] == number
        assert {n: found[f"upload-{n}"].id for n in range(number)} == uploads.taken
        assert {(one.state, one.generation) for one in found.values()} == {("done", 1)}

"""How soon the documents of a killed worker run again: `python benchmarks/takeover.py [--rounds N]`.

Two workers with 20 documents in hand each; one is killed with SIGKILL. Prints when the first and the last of its
documents started again elsewhere, per round, on SQLite and on PostgreSQL.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.conftest import database_url, postgres_database, postgres_server
from tests.faults.fleet import Fleet

CONCURRENCY = 20


def measure(url: str) -> tuple[float, float]:
    """Seconds from the kill to the first and to the last start elsewhere."""
    with tempfile.TemporaryDirectory() as directory, Fleet(url, Path(directory)) as fleet:
        fleet.add("second", {f"d{number}": "60" for number in range(2 * CONCURRENCY)})
        victim = fleet.start("seconds", concurrency=CONCURRENCY)
        fleet.wait(lambda: len(fleet.starts()) == CONCURRENCY, "the victim to have its hands full")
        fleet.start("seconds", concurrency=2 * CONCURRENCY)
        fleet.wait(lambda: len(fleet.starts()) == 2 * CONCURRENCY, "all to be in hand")
        killed_s = victim.kill()
        fleet.wait(lambda: len(fleet.starts()) == 3 * CONCURRENCY, "all to start again")
        again_s = [line.at_s - killed_s for line in fleet.starts()[2 * CONCURRENCY :]]
        return min(again_s), max(again_s)


def show(store: str, number: int, url: str) -> None:
    first_s, last_s = measure(url)
    print(
        f"{store:9} round {number + 1}: started again {first_s:.2f} to {last_s:.2f} s after the kill",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    for number in range(rounds):
        with tempfile.TemporaryDirectory() as directory:
            first_s, last_s = measure(f"sqlite:///{directory}/perdure.db")
        print(
            f"sqlite    round {number + 1}: started again {first_s:.2f} to {last_s:.2f} s after the kill",
            flush=True,
        )
    with postgres_server() as server:
        for number in range(rounds):
            with postgres_database(server) as name:
                show("postgres", number, database_url(server, name))


if __name__ == "__main__":
    main()

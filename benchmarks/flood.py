"""How long others wait beside an organisation that floods the HTTP API: `python benchmarks/flood.py`.

Prints the 95th percentile from add to done, alone and beside the flood, on SQLite and on PostgreSQL.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.api.flooding import field
from tests.conftest import database_url, postgres_database, postgres_server


def measure(store: str, url: str) -> None:
    with field(url) as here:
        here.waits_s(5)  # until the worker is there
        alone = here.waits_s(40)
        with here.flood(documents=5000, threads=8):
            beside = here.waits_s(40)
    alone_s, beside_s = (waits[int(len(waits) * 0.95)] for waits in (alone, beside))
    print(
        f"{store:9} P95 {alone_s * 1000:.0f} ms alone, {beside_s * 1000:.0f} ms beside a flood: "
        f"{beside_s / alone_s:.2f} x",
        flush=True,
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        measure("sqlite", f"sqlite:///{directory}/perdure.db")
    with postgres_server() as server, postgres_database(server) as name:
        measure("postgres", database_url(server, name))


if __name__ == "__main__":
    main()

"""What reading an mbox costs beside bare `mailbox.mbox`, in the same run, and how threading grows.

    python benchmarks/mail.py [--messages 3000] [--rounds 5]

The archive is the one that the tests use. `mailbox` parses each message as it iterates; here listing finds the
messages, reads the headers that identify them and hashes their bodies, `with headers` also parses all headers by the
standard library, and decoding gives text and attachments. The least CPU time of several rounds, taken in turns.
"""

from __future__ import annotations

import argparse
import mailbox
import random
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.parser import BytesHeaderParser
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from perdure.pipelines.mail.archive import open_archive
from perdure.pipelines.mail.message import decode
from perdure.pipelines.mail.threads import Letter, threads
from tests.pipelines.mail.corpus import corpus


def bare(path: Path) -> int:
    return sum(1 for message in mailbox.mbox(path, create=False) if message["message-id"] != "")


def listing(path: Path) -> int:
    with open_archive(path) as archive:
        return sum(1 for _ in archive) + archive.duplicates


def with_headers(path: Path) -> int:
    parser = BytesHeaderParser()
    with open_archive(path) as archive:
        return sum(1 for entry in archive if parser.parsebytes(entry.data)) + archive.duplicates


def decoded(path: Path) -> int:
    with open_archive(path) as archive:
        return sum(1 for entry in archive if decode(entry.data)) + archive.duplicates


def letters(count: int) -> list[Letter]:
    """Three in four answer one of the last few hundred."""
    chance = random.Random(1)
    start = datetime(2024, 1, 1, tzinfo=UTC)
    made: list[Letter] = []
    for n in range(count):
        references: tuple[str, ...] = ()
        if n and chance.random() < 0.75:
            parent = made[max(0, n - 1 - int(chance.expovariate(0.01)))]
            references = (*parent.references, parent.message_id)[-10:]
        at = start + timedelta(minutes=n)
        made.append(Letter(f"{n:032x}", f"m{n}@x.example", references, "", f"Re: subject {n % 5_000}", at))
    return made


def cpu_s(work: Callable[[], object]) -> float:
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=3_000)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "archive.mbox"
        path.write_bytes(corpus(asked.messages).mbox)
        ways = {"mailbox.mbox": bare, "listing": listing, "with headers": with_headers, "decoded": decoded}
        took = {name: [0.0] * asked.rounds for name in ways}
        for round_ in range(asked.rounds):
            for name, way in ways.items():
                took[name][round_] = cpu_s(lambda way=way: way(path))  # type: ignore[misc]
        least = {name: min(times) for name, times in took.items()}
        print(f"{bare(path)} messages, {path.stat().st_size / 1e6:.1f} MB")
        for name, seconds in least.items():
            print(f"{name:14} {seconds:7.3f} s   {seconds / least['mailbox.mbox']:5.2f} x mailbox")
    for count in (25_000, 50_000, 100_000):
        made = letters(count)
        print(f"threads of {count:7,}  {cpu_s(lambda made=made: threads(made)):6.2f} s")  # type: ignore[misc]


if __name__ == "__main__":
    main()

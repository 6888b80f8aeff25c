"""`python -m perdure.api.reader`: a process that does work for the server, one piece after the other, see `readers`.

Each piece and each answer stands behind its length in eight bytes. A piece is a pickle, which the server makes and no
caller. An answer is of plain values (`answers`): this process parses foreign bodies, so the server does not trust it.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
from contextlib import suppress
from typing import BinaryIO

from perdure.api import answers
from perdure.engine.behind import stand_behind
from perdure.engine.memory import give_back_if_grown

HEAD_BYTES = 8


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends us
    asked, to = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else may be printed there
    stand_behind()
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("500")
    gc.disable()  # JSON has no cycles, and looking for them takes as long as reading it
    while head := asked.read(HEAD_BYTES):
        answer(asked.read(int.from_bytes(head)), to)
        give_back_if_grown()


def answer(piece: bytes, to: BinaryIO) -> None:
    """Do a piece of work and send what came of it: the value, or the error that it raised."""
    work, args = pickle.loads(piece)
    sent = answers.encode(lambda: work(*args))
    with suppress(BrokenPipeError):  # the server has gone
        to.write(len(sent).to_bytes(HEAD_BYTES) + sent)
        to.flush()


if __name__ == "__main__":
    main()

"""`python -m perdure.api.reader`: a process that does work for the server, one piece after the other, see `readers`.

Each piece and each answer is a pickle behind its length in eight bytes. Both ends are this program; callers write
nothing of it.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import traceback
from contextlib import suppress
from typing import Any, BinaryIO

from perdure.engine.behind import stand_behind
from perdure.engine.memory import give_back_if_grown
from perdure.errors import PerdureError

HEAD_BYTES = 8


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends us
    asked, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else may be printed there
    stand_behind()
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("500")
    gc.disable()  # JSON has no cycles, and looking for them takes as long as reading it
    while head := asked.read(HEAD_BYTES):
        answer(asked.read(int.from_bytes(head)), answers)
        give_back_if_grown()


def answer(piece: bytes, to: BinaryIO) -> None:
    """Do a piece of work and send what came of it: the value, or the error that it raised."""
    work, args = pickle.loads(piece)
    try:
        done: tuple[bool, Any] = (True, work(*args))
    except (PerdureError, OSError, MemoryError) as error:
        done = (False, error)
    except Exception:
        done = (False, RuntimeError(traceback.format_exc()))
    sent = pickle.dumps(done, pickle.HIGHEST_PROTOCOL)
    with suppress(BrokenPipeError):  # the server has gone
        to.write(len(sent).to_bytes(HEAD_BYTES) + sent)
        to.flush()


if __name__ == "__main__":
    main()

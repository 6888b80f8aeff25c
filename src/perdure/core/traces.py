"""Where an error was raised, as owners of documents may see it: without the directories of the machine."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import traceback
from pathlib import Path

TRACEBACK_MAX = 8_000
ENGINE = str(Path(__file__).parents[1] / "engine") + os.sep
#: What installed packages are in, which is below the directory of Python's own modules.
INSTALLED = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib"))
PLUMBING = ("<frozen", *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib")))
#: Where code stands that the author of a stage did not write.
LIBRARIES = (
    "<frozen",
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)


def traced(error: BaseException) -> str | None:
    """The traceback with its causes, of another process as its note tells; the end of one that is too long."""
    try:
        text = _without_directories(formatted(error))
    except Exception:  # of an exception whose own text cannot be had
        return None
    return text if len(text) <= TRACEBACK_MAX else f"…{text[1 - TRACEBACK_MAX :]}"


def formatted(error: BaseException) -> str:
    """The traceback with its causes, each from the first frame on that is neither the engine's nor Python's. All frames
    are there if the error was raised without any such."""
    told = traceback.TracebackException.from_exception(error, compact=True)
    todo = [told]
    while todo:
        one = todo.pop()
        frames = list(one.stack)
        first = next((n for n, frame in enumerate(frames) if not _runs_stages(frame.filename)), 0)
        one.stack = traceback.StackSummary.from_list(frames[first:])
        todo += filter(None, (one.__cause__, one.__context__, *(one.exceptions or ())))
    return "".join(told.format())


def _runs_stages(path: str) -> bool:
    """Whether a frame of this file is the engine's or Python's own."""
    return path.startswith(ENGINE) or (path.startswith(PLUMBING) and not path.startswith(INSTALLED))


def place_of(error: BaseException) -> str | None:
    """`file:line in function` of the last frame that is no library's; of another process as its note tells."""
    frames = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', "\n".join(getattr(error, "__notes__", ())))
    if not frames:
        walked = ((frame.f_code, at) for frame, at in traceback.walk_tb(error.__traceback__))
        frames = [(code.co_filename, str(at), code.co_name) for code, at in walked]
    own = [frame for frame in frames if not frame[0].startswith(LIBRARIES)]
    places = [f"{path}:{line} in {function}" for path, line, function in reversed(own or frames)]
    return _without_directories(places[0]) if places else None


def _without_directories(text: str) -> str:
    """Name files from the directories on that Python imports from."""
    roots = {os.path.abspath(path) for path in ("", *sys.path)} - {os.sep}
    for root in sorted(roots, key=len, reverse=True):
        text = text.replace(root + os.sep, "")
    return text

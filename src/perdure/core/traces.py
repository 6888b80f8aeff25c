"""Where an error was raised, as owners of documents may see it: without the directories of the machine."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import traceback

TRACEBACK_MAX = 8_000
#: Where code stands that the author of a stage did not write.
LIBRARIES = (
    "<frozen",
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)


def traced(error: BaseException) -> str | None:
    """The whole traceback with its causes, of another process as its note tells; the end of one that is too long."""
    try:
        text = _without_directories("".join(traceback.format_exception(error)))
    except Exception:  # of an exception whose own text cannot be had
        return None
    return text if len(text) <= TRACEBACK_MAX else f"…{text[1 - TRACEBACK_MAX :]}"


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

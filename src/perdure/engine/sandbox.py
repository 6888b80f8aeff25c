"""The rights that a cell gives up before it reads a file: network, files of others, signals, other processes.

Landlock (file system, TCP, signals) and seccomp (system calls) of Linux, called through ctypes; each is used as far as
the kernel has it. They hold for all that the cell starts, and nothing takes them back. Elsewhere `enter` does nothing.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from perdure.engine.syscalls import filter_program

PR_SET_NO_NEW_PRIVS = 38
SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC = 1, 1
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
LANDLOCK_CREATE_RULESET_VERSION, LANDLOCK_RULE_PATH_BENEATH = 1, 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
MAKE_CHAR, MAKE_BLOCK = 1 << 6, 1 << 11
TRUNCATE, IOCTL_DEV = 1 << 14, 1 << 15
READ = EXECUTE | READ_FILE | READ_DIR
FILE = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV  # what a rule for a single file may grant
#: The rights that each version of Landlock knows, and whether it has rules for TCP and scopes for signals.
RIGHTS = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF, 5: 0xFFFF}
TCP_SINCE, SCOPES_SINCE = 4, 6

#: Beside the interpreter and its packages; whatever of these there is.
READABLE = (
    "/usr", "/lib", "/lib64", "/lib32", "/bin", "/nix/store", "/etc/fonts", "/etc/ld.so.cache", "/etc/localtime",
    "/etc/mime.types", "/etc/apache2/mime.types", "/etc/httpd/mime.types", "/sys/devices/system/cpu", "/proc/cpuinfo",
    "/proc/meminfo",
)  # fmt: skip
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
CAP_DAC_OVERRIDE = 1 << 1  # a worker that is root may run from another user's directory

#: The parts that worked when the process that forks cells tried them: each cell uses these and must not go on without.
proven: frozenset[str] = frozenset()
#: What was imported for the stages: they may import more from there.
modules: Sequence[str] = ()
_entered = False


def prepare() -> None:
    """Find out once what every cell needs."""
    _libc(), _readable()
    with suppress(OSError):
        filter_program()


def enter(den: str) -> list[str]:
    """Give up all rights but to read programs and packages, and to read and write in `den`.

    Returns what holds now: "landlock N" and "seccomp", if it is proven. For a process with one thread.
    Raises: OSError if what is proven does not work.
    """
    global _entered  # noqa: PLW0603
    if _entered or not proven:
        return []
    _entered = True
    libc = _libc()
    _checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _drop_capabilities(libc)
    return [part(libc, den) for name, part in PARTS.items() if name in proven]


def tried(den: str) -> list[str]:
    """Try which parts work here; for a process that ends at once. A kernel or container may also kill it for that."""
    global proven, _entered
    held: list[str] = []
    for name in PARTS if sys.platform.startswith("linux") else ():
        proven, _entered = frozenset([name]), False
        with suppress(OSError):
            held += enter(den)
    return held


def names(held: Iterable[str]) -> frozenset[str]:
    """The parts that this is told of."""
    return frozenset(part.partition(" ")[0] for part in held)


def in_force(held: Iterable[str]) -> bool:
    """Whether these are enough to be called a sandbox."""
    return names(held) == {"landlock", "seccomp"}


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(answer: int) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    """What makes root more than a user; a user has none."""
    header = ctypes.create_string_buffer(struct.pack("=Ii", 0x20080522, 0))
    kept = CAP_DAC_OVERRIDE if os.geteuid() == 0 else 0
    with suppress(OSError, AttributeError):
        _checked(libc.capset(header, ctypes.create_string_buffer(struct.pack("=6I", kept, kept, 0, 0, 0, 0))))


# --- files and signals -----------------------------------------------------------------------


def _landlock(libc: ctypes.CDLL, den: str) -> str:
    version = _checked(libc.syscall(LANDLOCK_CREATE_RULESET, None, 0, LANDLOCK_CREATE_RULESET_VERSION))
    rights = RIGHTS[min(version, max(RIGHTS))]
    about = struct.pack("=Q", rights)
    if version >= TCP_SINCE:
        about += struct.pack("=Q", 0b11)  # to bind and to connect
    if version >= SCOPES_SINCE:
        about += struct.pack("=Q", 0b11)  # abstract sockets and signals
    rules = _checked(libc.syscall(LANDLOCK_CREATE_RULESET, about, len(about), 0))
    try:
        _allow(libc, rules, den, rights & ~(EXECUTE | MAKE_CHAR | MAKE_BLOCK))
        for path in _readable():
            _allow(libc, rules, path, READ & rights)
        for path in DEVICES:
            _allow(libc, rules, path, (READ_FILE | WRITE_FILE | IOCTL_DEV) & rights)
        _checked(libc.syscall(LANDLOCK_RESTRICT_SELF, rules, 0))
    finally:
        os.close(rules)
    return f"landlock {version}"


def _allow(libc: ctypes.CDLL, rules: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # there is none
    try:
        rule = struct.pack("=Qi", rights if os.path.isdir(path) else rights & FILE, fd)
        _checked(libc.syscall(LANDLOCK_ADD_RULE, rules, LANDLOCK_RULE_PATH_BENEATH, rule, 0))
    finally:
        os.close(fd)


@cache
def _readable() -> frozenset[str]:
    """Programs, packages and data that a reader may open late. No directory of the user's but his packages."""
    found = {*READABLE, sys.prefix, sys.base_prefix, sys.exec_prefix, str(Path(__file__).parents[1])}
    found |= {
        path for name in ("stdlib", "platstdlib", "purelib", "platlib") if (path := sysconfig.get_path(name))
    }
    found |= {entry for entry in sys.path if os.path.basename(entry) in ("site-packages", "dist-packages")}
    if (program := shutil.which("tesseract")) is not None:
        found.add(os.path.realpath(program))
    if "TESSDATA_PREFIX" in os.environ:
        found.add(os.environ["TESSDATA_PREFIX"])
    found |= set(_places())
    return frozenset(found - {"/"})


def _places() -> Iterator[str]:
    """Where the modules are: the directory of a package, the file of one that is in none."""
    for name in modules:
        module = sys.modules.get(name.partition(".")[0])
        yield from map(
            str, getattr(module, "__path__", None) or filter(None, [getattr(module, "__file__", None)])
        )


# --- system calls ----------------------------------------------------------------------------


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def _seccomp(libc: ctypes.CDLL, _: str) -> str:
    number, code = filter_program()
    program = _Program(len(code) // 8, code)
    _checked(libc.syscall(number, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, ctypes.byref(program)))
    return "seccomp"


PARTS = {"landlock": _landlock, "seccomp": _seccomp}

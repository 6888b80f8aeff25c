"""The system calls that a cell in a sandbox cannot make, as a filter program for the kernel.

All others are left alone: a reader of files needs many, and which ones changes with its libraries. Refused are those
that reach beyond the process where Landlock does not look.
"""

from __future__ import annotations

import errno
import os
import struct
from functools import cache

#: Its audit number, the number of `seccomp`, and which column of the tables below.
MACHINES = {"x86_64": (0xC000003E, 317, 0), "aarch64": (0xC00000B7, 277, 1)}
X32 = 0x40000000  # another way to make calls on x86_64, with other numbers
ABSENT = -1

#: Refused whatever their arguments: their numbers on x86_64 and aarch64.
REFUSED = {
    # connections; what the cell inherited and pairs of sockets of its own stay
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201), "accept": (43, 202),
    "accept4": (288, 242),
    # memory and descriptors of other processes, and what they are scheduled by
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "migrate_pages": (256, 238), "move_pages": (279, 239),
    "setpriority": (141, 140), "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118), "sched_setattr": (314, 274), "ioprio_set": (251, 30),
    # what would take a process out of the group that is killed as one when the cell ends
    "setsid": (112, 157), "setpgid": (109, 154),
    # shared memory and queues that have no path
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "msgget": (68, 186), "msgsnd": (69, 189),
    "msgrcv": (70, 188), "msgctl": (71, 187), "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191),
    "mq_open": (240, 180), "mq_unlink": (241, 181),
    # owners, modes, times and lengths of files, which Landlock does not guard
    "chmod": (90, ABSENT), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, ABSENT), "fchown": (93, 55), "lchown": (94, ABSENT), "fchownat": (260, 54),
    "utime": (132, ABSENT), "utimes": (235, ABSENT), "futimesat": (261, ABSENT), "utimensat": (280, 88),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "removexattrat": (466, 466),
    "truncate": (76, 45), "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
    "file_setattr": (469, 469),
    # ways round this filter, and parts of the kernel that no reader needs
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "keyctl": (250, 219),
    "add_key": (248, 217), "request_key": (249, 218), "personality": (135, 92),
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    # the machine
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
    "acct": (163, 89), "quotactl": (179, 60), "syslog": (103, 116), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266), "sethostname": (170, 161),
    "setdomainname": (171, 162), "iopl": (172, ABSENT), "ioperm": (173, ABSENT),
}  # fmt: skip
CLONE, CLONE3, SOCKETPAIR, PRLIMIT, IOCTL = (56, 220), (435, 435), (53, 199), (302, 261), (16, 29)
NEW_NAMESPACES = 0x7E020000
SOCK_STREAM, SOCK_TYPES = 1, 0xF
TIOCSTI, TIOCLINUX = 0x5412, 0x541C  # type at the terminal of the user

_LOAD, _AND, _EQUAL, _AT_LEAST, _ANY, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER, _MACHINE = 0, 4


def _argument(position: int) -> int:
    return 16 + 8 * position  # its lower half, on machines that are little-endian


def _step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)


_DENY = _step(_RETURN, _ERRNO | errno.EPERM)


def _if_called(number: int, *steps: bytes) -> list[bytes]:
    """These steps for calls of that number; afterwards the number is at hand again."""
    return [_step(_EQUAL, number, no=len(steps) + 1), *steps, _step(_LOAD, _NUMBER)]


@cache
def filter_program() -> tuple[int, bytes]:
    """The number of `seccomp` on this machine and the program for it. Raises: OSError where there is none."""
    machine = MACHINES.get(os.uname().machine)
    if machine is None or struct.calcsize("P") != 8:
        raise OSError(errno.ENOSYS, "no filter for this kind of machine")
    audit, seccomp, column = machine
    steps = [_step(_LOAD, _MACHINE), _step(_EQUAL, audit, yes=1), _DENY, _step(_LOAD, _NUMBER)]
    if column == 0:
        steps += [_step(_AT_LEAST, X32, no=1), _DENY]
    for numbers in REFUSED.values():
        if numbers[column] != ABSENT:
            steps += [_step(_EQUAL, numbers[column], no=1), _DENY]
    # its flags are in memory, where no filter looks: the C library then uses clone
    steps += [_step(_EQUAL, CLONE3[column], no=1), _step(_RETURN, _ERRNO | errno.ENOSYS)]
    steps += _if_called(CLONE[column], _step(_LOAD, _argument(0)), _step(_ANY, NEW_NAMESPACES, no=1), _DENY)
    kind = (_step(_LOAD, _argument(1)), _step(_AND, SOCK_TYPES), _step(_EQUAL, SOCK_STREAM, yes=1), _DENY)
    steps += _if_called(SOCKETPAIR[column], *kind)
    steps += _if_called(PRLIMIT[column], _step(_LOAD, _argument(0)), _step(_EQUAL, 0, yes=1), _DENY)
    typing = (
        _step(_LOAD, _argument(1)),
        _step(_EQUAL, TIOCSTI, yes=1),
        _step(_EQUAL, TIOCLINUX, no=1),
        _DENY,
    )
    steps += _if_called(IOCTL[column], *typing)
    return seccomp, b"".join([*steps, _step(_RETURN, _ALLOW)])

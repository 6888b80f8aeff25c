"""What a worker has in hand, in memory that outlives it.

The process that runs stages writes one slot per job; the keeper (another process or thread) reads it to renew leases
and, after the worker's death, to know whose stage had begun and who was overdue. The keeper may mark a slot revoked,
and the worker drops that job. The token is taken away first and written last, so a torn read is noticed.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile

from perdure.core.frozen import frozen

FIELDS = 8
TOKEN, JOB, LEASE, STARTED, DEADLINE, RENEWED, REVOKED, USED = range(FIELDS)
SLOTS_MAX = 4096
KEPT = SLOTS_MAX * FIELDS * 8  # behind the slots: when the keeper was last at work
TICKS = KEPT + 8  # and how often the worker's event loop has ticked
SIZE = TICKS + 8
HERE, IN_CELL = 1, 2  # where stage code runs that has begun
_WORD = struct.Struct("<q")
_SLOT = struct.Struct(f"<{FIELDS}q")
_TAKEN = struct.Struct("<7q")  # from JOB on
_RUNNING = struct.Struct("<3q")  # from LEASE on
_PAUSED = struct.Struct("<2q")  # from STARTED on
_ALL = tuple(reversed(range(SLOTS_MAX)))


@frozen
class Held:
    """A job in hand. Times are monotonic milliseconds, which all processes of a machine share."""

    slot: int
    token: int
    job_id: int
    lease_ms: int
    started: bool
    deadline_ms: int  # 0: none
    renewed_ms: int
    here: bool = False  # it runs in the worker's own process, not in a cell


def shared_memory(name: str, size: int) -> tuple[mmap.mmap, int]:
    """Memory that other processes can have, too, by its file descriptor."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(name)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return mmap.mmap(fd, size), fd


class Slate:
    """A table of jobs in hand: `memory` is plain for one process, shared through `fd` for two."""

    def __init__(self, memory: mmap.mmap, fd: int = -1) -> None:
        self._memory = memory
        self.fd = fd
        # freed slots are taken again first, so those that were ever used are always the first ones
        self._free = list(_ALL)

    @classmethod
    def private(cls) -> Slate:
        """For a keeper in a thread of the same process."""
        return cls(mmap.mmap(-1, SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))

    @classmethod
    def shared(cls) -> Slate:
        """For a worker in a child process, which attaches to `fd`."""
        return cls(*shared_memory("perdure-slate", SIZE))

    @classmethod
    def attached(cls, fd: int) -> Slate:
        """The slate that the parent process made."""
        return cls(mmap.mmap(fd, SIZE), fd)

    # --- the worker's side -----------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many more jobs can be noted."""
        return len(self._free)

    def take(self, job_id: int, token: int, lease_ms: int, now_ms: int) -> int:
        """Note a claimed job; its slot."""
        slot = self._free.pop()
        begin = slot * _SLOT.size
        _WORD.pack_into(self._memory, begin, 0)
        _TAKEN.pack_into(self._memory, begin + _WORD.size * JOB, job_id, lease_ms, 0, 0, now_ms, 0, 1)
        _WORD.pack_into(self._memory, begin, token)
        return slot

    def start(self, slot: int, deadline_ms: int, lease_ms: int, where: int = HERE) -> None:
        """Stage code begins; the keeper ends it by force at `deadline_ms` (0: never)."""
        _RUNNING.pack_into(self._memory, slot * _SLOT.size + _WORD.size * LEASE, lease_ms, where, deadline_ms)

    def pause(self, slot: int) -> None:
        """No stage code runs."""
        _PAUSED.pack_into(self._memory, slot * _SLOT.size + _WORD.size * STARTED, 0, 0)

    def renewed(self, slot: int, now_ms: int) -> None:
        """A save renewed the lease."""
        self._put(slot, RENEWED, now_ms)

    def revoked(self, slot: int) -> bool:
        """Whether the keeper has given this job up."""
        return self._get(slot, REVOKED) != 0

    def free(self, slot: int) -> None:
        """The job was settled, or is another's."""
        self._put(slot, TOKEN, 0)
        self._free.append(slot)

    def tick(self) -> None:
        """The worker's event loop runs."""
        _WORD.pack_into(self._memory, TICKS, self.ticks() + 1)

    def unkept_ms(self, now_ms: int) -> int:
        """For how long nobody has kept our leases; 0 where nobody ever did, as in a worker driven by hand."""
        kept_ms = int(_WORD.unpack_from(self._memory, KEPT)[0])
        return now_ms - kept_ms if kept_ms else 0

    def lapsing(self, slot: int, now_ms: int) -> bool:
        """Whether two thirds of the lease are over without a renewal."""
        return now_ms - self._get(slot, RENEWED) > self._get(slot, LEASE) * 2 // 3

    # --- the keeper's side -----------------------------------------------------------------------

    def held(self) -> list[Held]:
        """Every job in hand; a slot that is being written at this moment is left out."""
        found = []
        for slot in range(SLOTS_MAX):
            whole = _SLOT.unpack_from(self._memory, slot * _SLOT.size)
            token, job_id, lease_ms, started, deadline_ms, renewed_ms, _, used = whole
            if not used:
                break
            if token and token == self._get(slot, TOKEN):
                here = started == HERE
                found.append(Held(slot, token, job_id, lease_ms, started != 0, deadline_ms, renewed_ms, here))
        return found

    def ticks(self) -> int:
        """How often the worker's event loop has ticked; 0: it has not begun."""
        return int(_WORD.unpack_from(self._memory, TICKS)[0])

    def kept(self, now_ms: int) -> None:
        """The keeper is at work."""
        _WORD.pack_into(self._memory, KEPT, now_ms)

    def beaten(self, held: Held, now_ms: int) -> None:
        """The keeper renewed the lease, if the slot is still that job's."""
        if self._get(held.slot, TOKEN) == held.token:
            self._put(held.slot, RENEWED, now_ms)

    def revoke(self, held: Held) -> None:
        """Tell the worker to drop the job, if the slot is still that job's."""
        if self._get(held.slot, TOKEN) == held.token:
            self._put(held.slot, REVOKED, 1)

    def _get(self, slot: int, field: int) -> int:
        return int(_WORD.unpack_from(self._memory, slot * _SLOT.size + field * _WORD.size)[0])

    def _put(self, slot: int, field: int, value: int) -> None:
        _WORD.pack_into(self._memory, slot * _SLOT.size + field * _WORD.size, value)

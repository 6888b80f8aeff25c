"""What lies around a document: the chunks that its own are near, and those that have its own among theirs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from perdure.core.frozen import frozen
from perdure.store.background import in_background
from perdure.store.base import Row
from perdure.store.each import Each
from perdure.store.near import Among, Near, Which

if TYPE_CHECKING:
    from perdure.store.searching import Searching

#: Chunks whose neighbours are looked for at a time.
BLOCK = 16
#: Neighbours of a chunk that are looked at: a passage that stands everywhere is near to every chunk there is, and all
#: pairs of a large document would be a flood of rows. At least this many, and this many times the length of a list.
NEIGHBOURS, NEIGHBOURS_EACH = 100, 5
#: How far two ways to compute a cosine may lie apart: what is that close to a bound is computed in one way only.
SLACK = 1e-5

#: A chunk, by its document and its id.
Place = tuple[str, str]
#: Score and model.
Told = tuple[float, str]
#: Chunks, and what is near each of them.
Lists = defaultdict[Place, dict[Place, Told]]

#: Entries of others' lists that lead to chunks which the document does not have any more, and whose lists they are.
LOST = (
    "SELECT n.document_id, n.chunk_id, n.other_id, x.model, x.vector FROM connection n JOIN chunk x "
    "ON x.org = n.org AND x.document_id = n.document_id AND x.id = n.chunk_id AND x.model = n.model "
    "WHERE n.org = $1 AND n.other_document_id = $2 AND NOT EXISTS (SELECT 1 FROM chunk o "
    "WHERE o.org = n.org AND o.document_id = $2 AND o.id = n.other_id AND o.model = n.model)"
)
#: The worst score in a list, None unless it is full; what leads nowhere does not count. Looked up chunk by chunk: a
#: server without statistics would join whole tables. Lists have many chunks in common: PostgreSQL looks each up once.
WORST = Each(
    "SELECT r.num, (SELECT CASE WHEN count(*) >= $2 THEN min(n.score) END "
    "FROM chunk c CROSS JOIN connection n CROSS JOIN chunk o "
    "WHERE c.num = r.num AND n.org = $1 AND n.document_id = c.document_id AND n.chunk_id = c.id "
    "AND n.model = c.model AND o.org = $1 AND o.document_id = n.other_document_id AND o.id = n.other_id "
    "AND o.model = n.model) FROM {r}",
    2,
    of_all="WITH entry AS MATERIALIZED (SELECT r.num, n.* FROM {r} CROSS JOIN LATERAL ("
    "SELECT n.other_document_id, n.other_id, n.model, n.score FROM chunk c CROSS JOIN LATERAL ("
    "SELECT * FROM connection n WHERE n.org = $1 AND n.document_id = c.document_id AND n.chunk_id = c.id "
    "AND n.model = c.model OFFSET 0) n WHERE c.num = r.num OFFSET 0) n), "
    "there AS MATERIALIZED (SELECT * FROM (SELECT DISTINCT other_document_id, other_id, model FROM entry) x "
    "WHERE EXISTS (SELECT 1 FROM chunk o WHERE o.org = $1 AND o.document_id = x.other_document_id "
    "AND o.id = x.other_id AND o.model = x.model OFFSET 0)) "
    "SELECT num, min(score) FROM entry NATURAL JOIN there GROUP BY num HAVING count(*) >= $2",
    num="bigint",
)
PLACES = Each(
    "SELECT c.num, c.document_id, c.id, c.vector FROM {r} CROSS JOIN chunk c "
    "WHERE c.num = r.num AND c.org = $1 AND c.model = $2",
    2,
    num="bigint",
)


class Moved(Exception):
    """What was found is not there any more."""


@frozen
class Around:
    """Whole lists of some chunks and entries for those of others, and what was seen that leads nowhere."""

    lists: Lists = field(default_factory=lambda: defaultdict(dict))
    lost: frozenset[Row] = frozenset()

    def parts(self, size: int) -> Iterator[Around]:
        """The same, this many lists at a time; what leads nowhere comes last, when its lists are filled."""
        lists = sorted(self.lists.items())
        for n in range(0, len(lists), size):
            yield Around(defaultdict(dict, lists[n : n + size]))
        if self.lost:
            yield Around(lost=self.lost)

    def documents(self) -> set[str]:
        """Those that it tells of."""
        return {place[0] for of, near in self.lists.items() for place in (of, *near)}

    def chunks(self) -> set[Row]:
        """Every chunk that it tells of, with its model."""
        return {
            (*place, model)
            for of, near in self.lists.items()
            for other, (_, model) in near.items()
            for place in (of, other)
        }


def best(near: dict[Place, Told], each: int) -> dict[Place, Told]:
    """So many, by score and then by id: the same in whatever order they came."""
    return dict(sorted(near.items(), key=lambda one: (-one[1][0], one[0]))[:each])


class Look:
    """One look around; Moved where the chunks change meanwhile."""

    def __init__(self, store: Searching, org: str, threshold: float, each: int) -> None:
        self._store, self._org = store, org
        self._threshold, self._each = threshold, each
        self._worst: dict[int, float] = {}
        self._lists: Lists = defaultdict(dict)

    async def around(self, document_id: str, chunks: Sequence[Row]) -> Around:
        """Around these chunks (id, model, vector) of the document: their lists, and theirs in the lists of others."""
        await self._fill(((document_id, *row) for row in chunks), mutual=True)
        return Around(self._lists)

    async def lost(self, document_id: str) -> Around:
        """The lists of others that led to chunks which the document does not have any more."""
        lost = await self._store._rows(LOST, self._org, document_id)
        await self._fill({(here, id_, model, vector) for here, id_, _, model, vector in lost})
        return Around(self._lists, frozenset(row[:3] for row in lost))

    async def _fill(self, chunks: Iterable[Row], mutual: bool = False) -> None:
        """The lists of these chunks (document, id, model, vector); if `mutual`, they are put into those of others."""
        groups: defaultdict[tuple[str, str, int], list[tuple[str, bytes]]] = defaultdict(list)
        for document_id, id_, model, vector in chunks:
            groups[document_id, model, len(vector) // 4].append((id_, vector))
        for (document_id, model, dimensions), members in sorted(groups.items()):
            which = Which(self._org, model, dimensions)
            for n in range(0, len(members), BLOCK):
                await self._block(which, document_id, members[n : n + BLOCK], mutual)

    async def _block(
        self, which: Which, document_id: str, chunks: list[tuple[str, bytes]], mutual: bool
    ) -> None:
        vectors = [vector for _, vector in chunks]
        most = max(NEIGHBOURS, NEIGHBOURS_EACH * self._each)
        least, but = self._threshold - SLACK, Among(but=document_id)
        found = await self._store._nearest(which, vectors, most, but, least)
        if mutual:
            await self._learn_worst({near.num for nears in found for near in nears})
        wanted = [self._wanted(nears, mutual) for nears in found]
        places = await self._places(which.model, {num for nums in wanted for num in nums})
        await in_background(self._take, which.model, document_id, chunks, wanted, places, mutual)

    def _take(
        self, model: str, document_id: str, chunks: list[tuple[str, bytes]], wanted: list[list[int]],
        places: dict[int, tuple[Place, bytes]], mutual: bool,
    ) -> None:  # fmt: skip
        """Put what was found into the lists; those of others never grow much longer than they may be."""
        from perdure.store.matrix import cosines  # numpy is loaded by whoever searches

        for (id_, vector), nums in zip(chunks, wanted, strict=True):
            near: dict[Place, Told] = {}
            scores = cosines(vector, [places[num][1] for num in nums])
            for num, score in zip(nums, scores, strict=True):
                if score < self._threshold:
                    continue
                near[places[num][0]] = (score, model)
                if mutual and score >= self._worst[num]:
                    self._enter(num, places[num][0], (document_id, id_), (score, model))
            self._lists[document_id, id_] |= best(near, self._each)

    def _enter(self, num: int, of: Place, place: Place, told: Told) -> None:
        """Into the list of another chunk. One that is full by now admits only what is as good as its worst."""
        near = self._lists[of]
        near[place] = told
        if len(near) >= 2 * self._each:
            self._lists[of] = near = best(near, self._each)
            self._worst[num] = max(self._worst[num], min(score for score, _ in near.values()))

    def _wanted(self, nears: list[Near], mutual: bool) -> list[int]:
        """Those that may be among the nearest, or may have ours among theirs."""
        bound = nears[self._each - 1].score if len(nears) >= self._each else -math.inf
        return [
            near.num for near in nears if near.score >= min(bound, self._worst[near.num] if mutual else bound) - SLACK
        ]  # fmt: skip

    async def _learn_worst(self, nums: set[int]) -> None:
        new = nums - self._worst.keys()
        self._worst |= dict.fromkeys(new, -math.inf)
        found = await self._read(WORST, (self._org, self._each), new)
        self._worst |= {num: worst for num, worst in found if worst is not None}

    async def _places(self, model: str, nums: set[int]) -> dict[int, tuple[Place, bytes]]:
        found = await self._read(PLACES, (self._org, model), nums)
        if len(found) < len(nums):
            raise Moved
        return {num: ((document_id, id_), vector) for num, document_id, id_, vector in found}

    async def _read(self, each: Each, params: Row, nums: set[int]) -> list[Row]:
        store, rows = self._store, [(num,) for num in sorted(nums)]
        return await store._read(lambda: each.steps(store.dialect_name, params, rows)) if rows else []

"""Which features meet: two features meet in a world if both touched the same document there.

A feature touches a document when the store shows that it did something to the document or to a job of it (its main job,
a follow-up, a hook, a repair), in any generation, until the end of the world. A child is another document. What was
planned does not count: a document with a limit key is not touched by `limit` while its key has no limit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import combinations

Pair = tuple[str, str]

#: Feature → when it touches a document.
FEATURES = {
    "remote": "a job of it was handed over to another service",
    "limit": "a job of it waited for room under its key, or was let in, while the key had a limit",
    "fallback": "a stage of it was saved as degraded",
    "gathering": "its main job waited for all that it had spawned",
    "items": "an item of it was saved",
    "hook": "it died, and the job of its hook was there",
    "follow-up": "a stage spawned a job of it",
    "hold": "a job of it stood in a lane that was down",
    "rerun": "a generation began with a stage that was to run again",
    "refresh": "it got other content under its key, or from its parent",
    "retention": "a finished job of it was pruned, or retention deleted it",
    "purge": "an operator deleted it",
    "priority": "a job of it had another priority than 0",
    "isolation": "a stage of it ran in a cell",
    "run-at": "its main job was not to begin before a time",
    "releases": "jobs of it were claimed by workers of both releases",
}
POSSIBLE: tuple[Pair, ...] = tuple(combinations(FEATURES, 2))


class Touched:
    """What touched each document of a world."""

    def __init__(self) -> None:
        self.features: defaultdict[str, set[str]] = defaultdict(set)  # by document
        self._releases: defaultdict[str, set[int]] = defaultdict(set)

    def by(self, feature: str, document_id: str) -> None:
        """The feature did something to the document."""
        self.features[document_id].add(feature)

    def by_release(self, release: int, document_id: str) -> None:
        """A worker of this release claimed a job of the document."""
        self._releases[document_id].add(release)
        if len(self._releases[document_id]) > 1:
            self.by("releases", document_id)

    def has(self, feature: str, document_id: str) -> bool:
        """Whether the feature has touched the document."""
        return feature in self.features.get(document_id, ())

    def pairs(self) -> set[Pair]:
        """The features that met."""
        return {pair for found in self.features.values() for pair in POSSIBLE if found.issuperset(pair)}


def table(met: Counter[Pair], worlds: int) -> str:
    """The number of worlds in which each pair met, each pair once."""
    names = tuple(FEATURES)
    lines = [" " * 10 + "".join(f"{name[:7]:>8}" for name in names[1:])]
    for n, name in enumerate(names[:-1]):
        cells = [str(met[name, other]) if other in names[n + 1 :] else "" for other in names[1:]]
        lines.append(f"{name:<10}" + "".join(f"{cell:>8}" for cell in cells))
    rarest = min(POSSIBLE, key=lambda pair: met[pair])
    lines.append(
        f"{sum(met[pair] > 0 for pair in POSSIBLE)} of {len(POSSIBLE)} pairs met in {worlds} worlds; "
        f"the rarest, {' and '.join(rarest)}, in {met[rarest]}"
    )
    return "\n".join(lines)

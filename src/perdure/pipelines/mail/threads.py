"""Messages to threads: by References and In-Reply-To, and by subject where a message has neither.

What is a thread follows from the set of messages alone, in whatever order they came:

- Every message and every message id that one refers to is a node. Messages with the same id share a node; a node
  without a message is a placeholder.
- A message's parent is the last it refers to, else what it replies to. One without either that is a reply by its
  subject ("Re: …") answers the last message before it with the same subject, if that is at most 30 days older.
- A placeholder's parent, and that of a message which names none, is whom most References put before it.
- A cycle is broken above its earliest message. All that is connected is one thread.

A thread's id follows from its root, the node above the earliest message; a placeholder is as good as a message there.
So a thread keeps its id when a message arrives that was referred to as the root. It changes when something above the
root becomes known or when two threads turn out to be one, and a message that was told by its subject may move when one
arrives that lies nearer: `merge` says which.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from perdure.core.fingerprint import digest
from perdure.core.frozen import frozen
from perdure.core.words import folded
from perdure.pipelines.mail.message import Message

WINDOW = timedelta(days=30)
_NEVER = datetime.max.replace(tzinfo=UTC)
_REPLY = r"(?:re|aw|sv|vs|antw|antwort|rif|ref|res|odp|ynt|回复|答复|回覆)"
_FORWARD = r"(?:fwd?|wg|tr|rv|enc|doorst|vb|转发|轉寄)"
_PREFIX = re.compile(
    rf"\s*(?:\[[^\[\]]{{1,80}}\]|{_REPLY}(?:\s*[\[(]?\d+[\])]?)?\s*[:：]|{_FORWARD}\s*[:：])", re.I
)
_IS_REPLY = re.compile(rf"\s*(?:\[[^\[\]]{{1,80}}\]\s*)*{_REPLY}(?:\s*[\[(]?\d+[\])]?)?\s*[:：]", re.I)
_FORWARDED = "(fwd)"

#: When, and who: earlier ones first, those without a date last.
_Rank = tuple[datetime, str]


@frozen
class Letter:
    """What threads are made of: a message's identity and the headers that connect it."""

    identity: str
    message_id: str = ""
    references: tuple[str, ...] = ()
    in_reply_to: str = ""
    subject: str = ""
    date: datetime | None = None


@frozen
class Node:
    """A place in a thread: the messages there (identities, usually one; none: it is missing) and the node above it."""

    id: str
    parent: str | None
    depth: int
    messages: tuple[str, ...]


@frozen
class Thread:
    """Messages that belong together; every node comes after its parent, answers in the order of their dates."""

    id: str
    subject: str
    nodes: tuple[Node, ...]

    @property
    def messages(self) -> tuple[str, ...]:
        """The identities of its messages, in order."""
        return tuple(identity for node in self.nodes for identity in node.messages)


@frozen
class Merge:
    """What more messages changed. `changed`: ids of threads that are new or have other messages than before;
    `superseded`: ids that are no more, and the threads in which their messages are now."""

    threads: tuple[Thread, ...]
    changed: tuple[str, ...]
    superseded: Mapping[str, tuple[str, ...]]


def letter_of(identity: str, message: Message) -> Letter:
    """What threads need of a decoded message."""
    return Letter(
        identity,
        message.message_id,
        message.references,
        message.in_reply_to,
        message.subject,
        message.date,
    )


def base_subject(subject: str) -> str:
    """The subject without Re:, Fwd:, AW:, [list] and the like, folded; "" if nothing is left."""
    at = 0
    while found := _PREFIX.match(subject, at):
        at = found.end()
    subject = subject[at:].rstrip()
    if subject[-len(_FORWARDED) :].lower() == _FORWARDED:
        subject = subject[: -len(_FORWARDED)]
    return " ".join(folded(subject).split())


def threads(letters: Iterable[Letter]) -> tuple[Thread, ...]:
    """The threads of these messages, by the date of their first message."""
    return _Forest(letters).threads()


def merge(known: Iterable[Letter], added: Iterable[Letter]) -> Merge:
    """The threads of all of them, and what `added` changed."""
    known = list(known)
    before, after = threads(known), threads([*known, *added])
    members = {thread.id: thread.messages for thread in before}
    changed = tuple(thread.id for thread in after if members.get(thread.id) != thread.messages)
    place = {identity: thread.id for thread in after for identity in thread.messages}
    gone = members.keys() - {thread.id for thread in after}
    heirs = {old: tuple(dict.fromkeys(place[one] for one in members[old])) for old in sorted(gone)}
    return Merge(after, changed, heirs)


class _Forest:
    def __init__(self, letters: Iterable[Letter]) -> None:
        unique: dict[str, Letter] = {}
        self._letters: dict[str, list[Letter]] = defaultdict(list)
        for letter in sorted(letters, key=_all_of):
            if unique.setdefault(letter.identity, letter) is letter:
                self._letters[_node(letter)].append(letter)
        self._rank = {node: _rank(group[0]) for node, group in self._letters.items()}
        self._chains = {node: [_chain(letter) for letter in group] for node, group in self._letters.items()}
        self._parent: dict[str, str] = {}
        self._choose_parents()
        self._break_cycles()

    def threads(self) -> tuple[Thread, ...]:
        earliest = self._earliest()
        children: dict[str, list[str]] = defaultdict(list)
        for node, parent in self._parent.items():
            if node in earliest:  # or there is no message below it
                children[parent].append(node)
        for nodes in children.values():
            nodes.sort(key=lambda node: (earliest[node], node))
        tops: dict[str, list[str]] = defaultdict(list)
        component = self._components()
        for node in sorted(earliest.keys() - self._parent.keys(), key=lambda node: (earliest[node], node)):
            tops[component[node]].append(node)
        return tuple(self._thread(group, children) for group in tops.values())

    def _thread(self, tops: Sequence[str], children: Mapping[str, Sequence[str]]) -> Thread:
        nodes = tuple(self._walk(tops, children))
        first = min((letter for node in nodes for letter in self._letters.get(node.id, ())), key=_rank)
        return Thread(digest("thread", tops[0])[:32], first.subject, nodes)

    def _walk(self, tops: Sequence[str], children: Mapping[str, Sequence[str]]) -> Iterator[Node]:
        waiting: list[tuple[str, str | None, int]] = [(top, None, 0) for top in reversed(tops)]
        while waiting:
            node, parent, depth = waiting.pop()
            yield Node(node, parent, depth, tuple(one.identity for one in self._letters.get(node, ())))
            waiting += [(child, node, depth + 1) for child in reversed(children.get(node, ()))]

    def _choose_parents(self) -> None:
        said: dict[str, Counter[str]] = defaultdict(Counter)
        for chains in self._chains.values():
            for chain in chains:
                for above, below in pairwise(chain):
                    said[below][above] += 1
        for node, counts in said.items():
            counts.pop(node, None)
            if counts:
                most = max(counts.values())
                self._parent[node] = min(above for above, count in counts.items() if count == most)
        by_subject = self._by_subject()
        for node, chains in self._chains.items():
            own = next((chain[-1] for chain in chains if chain and chain[-1] != node), None)
            if own is not None:
                self._parent[node] = own
            elif node not in self._parent and node in by_subject:
                self._parent[node] = by_subject[node]

    def _by_subject(self) -> dict[str, str]:
        """For each reply that refers to nothing the last node before it with the same subject, if that is recent."""
        groups: dict[str, list[tuple[_Rank, str, bool]]] = defaultdict(list)
        for node, letters in self._letters.items():
            first = letters[0]
            subject = base_subject(first.subject)
            if first.date is not None and subject:
                alone = not any(self._chains[node]) and _IS_REPLY.match(first.subject) is not None
                groups[subject].append((self._rank[node], node, alone))
        found = {}
        for group in groups.values():
            group.sort()
            for (before, above, _), (rank, node, alone) in pairwise(group):
                if alone and rank[0] - before[0] <= WINDOW:
                    found[node] = above
        return found

    def _break_cycles(self) -> None:
        done: set[str] = set()
        for start in list(self._parent):
            path: dict[str, None] = {}
            node: str | None = start
            while node is not None and node not in done and node not in path:
                path[node] = None
                node = self._parent.get(node)
            if node is not None and node in path:
                nodes = list(path)
                cycle = nodes[nodes.index(node) :]
                del self._parent[min(cycle, key=lambda one: self._rank.get(one, (_NEVER, one)))]
            done.update(path)

    def _earliest(self) -> dict[str, _Rank]:
        """The earliest message at or below each node; nodes without any are left out."""
        waits = Counter(self._parent.values())
        ready = [node for node in {*self._parent, *self._letters} if not waits[node]]
        found = dict(self._rank)
        while ready:
            node = ready.pop()
            parent = self._parent.get(node)
            if parent is None:
                continue
            if node in found:
                found[parent] = min(found.get(parent, found[node]), found[node])
            waits[parent] -= 1
            if not waits[parent]:
                ready.append(parent)
        return found

    def _components(self) -> dict[str, str]:
        """For each node one that stands for all that are connected with it."""
        leader: dict[str, str] = {}

        def find(node: str) -> str:
            top = node
            while (above := leader.setdefault(top, top)) != top:
                top = above
            while leader[node] != top:
                leader[node], node = top, leader[node]
            return top

        for node, chains in self._chains.items():
            for chain in chains:
                for other in chain:
                    leader[find(other)] = find(node)
        for node, parent in self._parent.items():
            leader[find(node)] = find(parent)
        return {node: find(node) for node in {*leader, *self._letters}}


def _rank(letter: Letter) -> _Rank:
    return letter.date or _NEVER, letter.identity


def _all_of(letter: Letter) -> tuple[_Rank, str, tuple[str, ...], str, str]:
    return _rank(letter), letter.message_id, letter.references, letter.in_reply_to, letter.subject


def _node(letter: Letter) -> str:
    # No message id has brackets in it, and no identity has any: they cannot be mistaken for each other.
    return f"<{letter.message_id}>" if letter.message_id else letter.identity


def _chain(letter: Letter) -> list[str]:
    """What it refers to, oldest first."""
    named = letter.references or ((letter.in_reply_to,) if letter.in_reply_to else ())
    return [f"<{one}>" for one in dict.fromkeys(named) if one and one != letter.message_id]

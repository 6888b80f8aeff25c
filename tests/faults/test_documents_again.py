"""Documents that come again, with other content, while their connections are looked for, their neighbours come again
too, and workers are killed: in the end each is found by what it says now, and meanwhile by nothing else."""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter

import pytest

from perdure.errors import StoreUnavailable
from perdure.pipelines.document import documents
from tests.calls.web import Hit, Web
from tests.faults.crew import Crew
from tests.faults.documents.account import assert_sound, fresh_pairs, pairs, passages, wait_until_quiet
from tests.faults.documents.library import note
from tests.faults.documents.places import APP, LINGER_VARIABLE
from tests.faults.fleet import Fleet
from tests.faults.flow import seeded

ORG = "library"
NOTES, PAGES = (
    ("anna", "bert", "cora", "dora"),
    ("emma", "fred"),
)  # each has at most five neighbours: all are connected
REVISION = re.compile(r"revision(\d+)")
ACTS = {"refresh": 5, "requeue": 3, "page": 3, "pause": 1, "resume": 2}


class Shelf:
    """Documents and what they say at present; each revision is told apart by a word that all its passages have."""

    def __init__(self, fleet: Fleet, web: Web, rng: random.Random) -> None:
        self.fleet, self.web, self.rng = fleet, web, rng
        self.ids: dict[str, str] = {}
        self.texts: dict[str, str] = {}
        self.revisions: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        for name in NOTES:
            self.refresh(name)
        for name in PAGES:
            web.routes[f"/{name}"] = self._page
            self.page(name)

    def text(self, name: str) -> str:
        """Other words than ever before."""
        self.revisions[name] += 1
        mark = f"{name} revision{self.revisions[name]}"
        return note("all", mark, self.rng.randint(1, 4), mark)

    def refresh(self, name: str) -> None:
        """Other content under its key."""
        text = self.text(name)
        adding = self.fleet.app.add(text=text, key=name, name=name, org=ORG, pipeline=documents)
        added = self.fleet.ask(adding)
        self.ids[name] = added.id
        self._answered("refresh", added.answer)
        if not added.answer.startswith("refused"):
            self.texts[name] = text

    def page(self, name: str) -> None:
        """Other content at its address, which comes again; whoever has it in hand may see the old or the new."""
        self.texts[name] = self.text(name)
        self.fetch(name)

    def fetch(self, name: str) -> None:
        adding = self.fleet.app.add(url=self.web.url(f"/{name}"), org=ORG, pipeline=documents)
        added = self.fleet.ask(adding)
        self.ids[name] = added.id
        self._answered("page", added.answer)

    def _page(self, hit: Hit) -> None:
        hit.answer(200, self.texts[hit.path[1:]].encode(), content_type="text/markdown")

    def act(self) -> None:
        """Something happens to one of them."""
        (act,) = self.rng.choices(tuple(ACTS), tuple(ACTS.values()))
        match act:
            case "refresh":
                self.refresh(self.rng.choice(NOTES))
            case "page":
                self.page(self.rng.choice(PAGES))
            case "requeue":
                id_ = self.ids[self.rng.choice((*NOTES, *PAGES))]
                requeueing = self.fleet.app.requeue(id_, from_stage="extract", org=ORG)
                self._answered(act, self.fleet.ask(requeueing))
            case _:
                self.fleet.ask(getattr(self.fleet.app, act)("connections"))

    def _answered(self, act: str, answer: str) -> None:
        self.answers[f"{act} {answer.partition(':')[0]}"] += 1


class Reader(threading.Thread):
    """Searches all the time; whatever it finds of one document must be of one revision."""

    def __init__(self, shelf: Shelf) -> None:
        super().__init__(daemon=True)
        self.shelf, self.fleet = shelf, shelf.fleet
        self.done = threading.Event()
        self.looks: Counter[str] = Counter()
        self.mixed: list[str] = []

    def __enter__(self) -> Reader:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.done.set()
        self.join()

    def run(self) -> None:
        while not self.done.wait(0.01):
            for name, id_ in list(self.shelf.ids.items()):
                try:
                    self._look(name, id_)
                except StoreUnavailable as error:
                    self.looks[type(error).__name__] += 1

    def _look(self, name: str, id_: str) -> None:
        app = self.fleet.app
        chunks = self.fleet.ask(app.chunks(id_, ORG))
        self._check(f"chunks of {name}", [chunk.text for chunk in chunks])
        hits = self.fleet.ask(app.search(name, org=ORG, document=id_, limit=100))
        self._check(f"search in {name}", [hit.snippet for hit in hits])
        among: dict[str, list[str]] = {}
        for hit in self.fleet.ask(app.search(" ".join((*NOTES, *PAGES)), org=ORG, limit=100)):
            among.setdefault(hit.document_id, []).append(hit.snippet)
        for found in among.values():
            self._check("search in all", found)

    def _check(self, what: str, texts: list[str]) -> None:
        self.looks[what.partition(" ")[0]] += 1
        revisions = {number for text in texts for number in REVISION.findall(text)}
        if len(revisions) > 1:
            self.mixed.append(f"{what}: revisions {sorted(revisions)}")


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    ("seconds", "kills"),
    [pytest.param(3, 1, id="short"), pytest.param(100, 30, id="long", marks=pytest.mark.long)],
)
def test_reprocessed_at_random(
    library: Fleet, web: Web, monkeypatch: pytest.MonkeyPatch, seconds: float, kills: int
) -> None:
    """Connections are saved up to a second after they were found, so that many are superseded by then."""
    monkeypatch.setenv(LINGER_VARIABLE, "1.0")
    with seeded() as rng:
        shelf = Shelf(library, web, rng)
        crew = Crew(library, rng, APP, size=2, concurrency=4)
        library.wait(lambda: library.reached(NOTES[0], "connect:end"), "work to be done", within_s=180)
        with Reader(shelf) as reader:
            disturb(shelf, crew, seconds, kills)
            library.ask(library.app.resume("connections"))
            rest_s = wait_until_quiet(library, within_s=180)
            for name in PAGES:  # they may have been in hand when they changed last
                shelf.fetch(name)
            wait_until_quiet(library, within_s=180)

        print(
            f"{dict(shelf.answers)}, {len(crew.losses)} kills, looked {dict(reader.looks)}, all ended {rest_s:.1f} s "
            f"after the last act, {library.tally().fenced} late writes refused"
        )
        assert reader.mixed == []
        assert_up_to_date(library, shelf)


def disturb(shelf: Shelf, crew: Crew, seconds: float, kills: int) -> None:
    """Let documents come again, and kill whoever works on them now and then."""
    rng, began_s = shelf.rng, time.monotonic()
    while time.monotonic() - began_s < seconds or len(crew.losses) < kills:
        shelf.act()
        if time.monotonic() - began_s > len(crew.losses) * seconds / kills:
            crew.kill_one()
        time.sleep(rng.uniform(0.0, 0.15))


def assert_up_to_date(fleet: Fleet, shelf: Shelf) -> None:
    """All is done, found by what it says now, connected with what is like it now, and nothing died on the way."""
    statuses = fleet.ask(fleet.app.documents(org=ORG, limit=100))
    assert {s.id: s.state for s in statuses} == dict.fromkeys(shelf.ids.values(), "done")
    for name, id_ in shelf.ids.items():
        history = fleet.ask(fleet.app.attempts(id_, ORG))
        assert [a for a in history if a.outcome == "dead"] == []
        assert [a for a in history if a.error_code not in (None, "worker_lost")] == [], name
    found = passages(fleet, ORG, shelf.ids)
    for name, text in shelf.texts.items():
        assert [passage[4].rpartition("-->")[2].strip() for passage in found[name]] == text.split("\n\n"), (
            name
        )
    connected = pairs(fleet, ORG, shelf.ids)
    assert connected == pytest.approx(fresh_pairs(fleet, ORG, shelf.ids), abs=1e-5)
    assert connected, "without connections this shows nothing of them"
    assert_sound(fleet)

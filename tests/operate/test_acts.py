"""Operators' verbs: what each does, and that every one is in the trail with who, what and why."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from perdure import Document, Permanent, Pipeline
from perdure.errors import InputInvalid
from perdure.settings import Settings
from perdure.testing import Trial, drain, tick, trial

books = Pipeline("books", attempts=1, concurrency_key=lambda doc: doc.meta.get("host"))


@books.stage
def read(doc: Document) -> str:
    if doc.text == "bad":
        raise Permanent("no_letters", "there is not a letter in it")
    return doc.text


@books.stage(needs=["ocr"])
def look(read: str) -> int:
    return len(read)


def now(app: Trial) -> datetime:
    return datetime.fromtimestamp(app.clock.now_ms() / 1000, UTC)


def order(app: Trial) -> list[str]:
    """The documents in the order in which they are claimed."""
    found: list[str] = []
    for _ in range(10):
        if not tick(app):
            break
        done = {s.name for s in app.documents(state="done")}
        found += sorted(done - set(found))
    return found


def test_every_act_is_in_the_trail_with_who_what_and_why(store_url: str) -> None:
    with trial(books, store=store_url) as app:
        dead, waits = app.add(text="bad", pipeline=books).id, app.add(text="b", pipeline=books, delay_s=9).id
        tick(app)
        assert app.requeue(dead, reason="read again", who="ann") == "requeued"
        assert app.cancel(dead, reason="no use", who="ann") == "cancelled"
        assert app.priority(waits, 7, reason="the boss", who="bob") == "changed"
        assert app.raise_(waits, reason="at once", who="bob") == "raised"
        app.clock.advance(60)
        app.pause("documents", reason="disk full", who="bob")
        app.resume("documents", reason="disk emptied", who="bob")
        app.hold("ocr", "no answers", who="eve")
        app.release("ocr", "answers", who="eve")
        app.limit("slow.example", concurrency=2, reason="asked to", who="eve", new=True)
        app.weigh("acme", 2, reason="pays", who="eve")
        told = [(act.who, act.verb, act.target, act.reason) for act in reversed(app.acts())]
        assert told == [
            ("ann", "requeue", dead, "read again"),
            ("ann", "cancel", dead, "no use"),
            ("bob", "priority", waits, "7: the boss"),
            ("bob", "raise", waits, "at once"),
            ("bob", "pause", "documents", "disk full"),
            ("bob", "resume", "documents", "disk emptied"),
            ("eve", "hold", "ocr", "no answers"),
            ("eve", "release", "ocr", "answers"),
            ("eve", "limit", "slow.example", "concurrency 2, rate any: asked to"),
            ("eve", "weigh", "acme", "2: pays"),
        ]
        assert [act.verb for act in app.acts(target=waits)] == ["raise", "priority"]
        assert [act.verb for act in app.acts(who="ann", verb="cancel")] == ["cancel"]
        assert len(app.acts(since=now(app) - timedelta(seconds=30))) == 6
        page = app.acts(limit=4)
        rest = app.acts(after=page[-1].id)
        assert [*page, *rest] == app.acts()
        with pytest.raises(InputInvalid, match="time zone"):
            app.acts(since=datetime(2027, 1, 1))


def test_who_acts_is_said_or_set_or_the_user(store_url: str) -> None:
    with trial(books, store=store_url) as app:
        app.add(text="a", pipeline=books)
        app.service.settings = Settings(operator="night shift")
        app.pause("documents")
        app.pause("documents", who="ann")
        app.service.settings = Settings()
        app.pause("documents")
        user, ann, shift = (act.who for act in app.acts())
        assert (ann, shift) == ("ann", "night shift")
        assert user not in ("", "ann", "night shift")
        with pytest.raises(InputInvalid, match="who acts"):
            app.pause("documents", who="a\0b")


def test_a_requeue_can_be_put_off(store_url: str) -> None:
    with trial(books, store=store_url) as app:
        first, second = (app.add(text=text, pipeline=books).id for text in ("a", "b"))
        assert drain(app).done == 2
        at = now(app) + timedelta(hours=2)
        assert app.requeue(first, at=at, reason="when it is quiet") == "requeued"
        assert app.requeue(second, delay_s=60, from_stage="look") == "requeued"
        one, other = app.status(first), app.status(second)
        assert (one.state, one.generation, one.run_at_ms) == ("waiting", 2, int(at.timestamp() * 1000))
        assert (other.state, other.run_at_ms) == ("waiting", app.clock.now_ms() + 60_000)
        assert tick(app) == 0
        app.clock.advance(61)
        assert tick(app) == 1
        assert (app.status(first).state, app.status(second).state) == ("waiting", "done")
        app.clock.advance(7_200)
        assert tick(app) == 1
        for wrong in ({"at": datetime(2027, 1, 1)}, {"delay_s": -1}):
            with pytest.raises(InputInvalid, match="put off"):
                app.requeue(first, **wrong)


def test_a_document_that_waits_for_its_turn_can_go_before_or_behind(store_url: str) -> None:
    with trial(books, store=store_url, concurrency=1) as app:
        ids = {name: app.add(text=name, name=name, pipeline=books).id for name in "abcde"}
        assert app.priority(ids["d"], 5) == "changed"
        assert app.priority(ids["a"], -5) == "changed"
        assert app.raise_(ids["e"]) == "raised"
        assert order(app) == ["e", "d", "b", "c", "a"]
        assert app.priority(ids["a"], 3).startswith("refused")
        assert app.priority("nobody", 3).startswith("refused")
        with pytest.raises(InputInvalid, match="from -100 to 100"):
            app.priority(ids["a"], 101)


def test_one_that_was_raised_can_be_put_back(store_url: str) -> None:
    with trial(books, store=store_url, concurrency=1) as app:
        ids = {name: app.add(text=name, name=name, pipeline=books).id for name in "abc"}
        later = app.add(text="z", name="z", pipeline=books, delay_s=50).id
        app.raise_(ids["c"])
        app.priority(ids["c"], -1)
        app.priority(later, 9)
        assert order(app) == ["a", "b", "c"]
        app.clock.advance(60)
        assert tick(app) == 1
        assert app.status(later).state == "done"


def test_limits_are_shown_with_who_waits_for_room(store_url: str) -> None:
    with trial(books, store=store_url) as app:
        app.limit("slow.example", concurrency=2, new=True)
        for n in range(5):
            app.add(text=f"a{n}", pipeline=books, meta={"host": "slow.example"})
        (found,) = app.limits()
        assert (found.key, found.concurrency, found.rate_per_s) == ("slow.example", 2, None)
        assert (found.used, found.parked) == (2, 3)
        assert app.limits("other") == []


def test_acts_are_found_by_an_abbreviated_id(store_url: str) -> None:
    with trial(books, store=store_url) as app:
        first, second, third = (app.add(text=text, pipeline=books).id for text in ("a", "b", "c"))
        for id_ in (first, second):
            app.cancel(id_, who="ann")
        app.delete(second, who="ann")
        shared = next(n for n in range(6, 36) if len({id_[:n] for id_ in (first, second, third)}) == 3)
        assert [act.target for act in app.acts(target=first[:shared])] == [first]
        assert {act.verb for act in app.acts(target=second[:shared])} == {"cancel", "purge"}, "it is deleted"
        assert app.acts(target=third[:shared]) == []
        with pytest.raises(InputInvalid, match="several documents") as refused:
            app.acts(target=first[:6])
        assert refused.value.code == "id_ambiguous"
        app.pause("documents")
        assert [act.verb for act in app.acts(target="documents")] == ["pause"]


def test_keys_and_webhooks_are_named_by_the_beginning_of_their_ids(store_url: str) -> None:
    with trial(books, store=store_url) as app:
        (key, _), (other, _) = app.add_key("acme"), app.add_key("acme")
        assert app.revoke_key(key.id[:8]) == key.id
        all_keys = app.keys()
        assert {one.id: one.revoked_ms is None for one in all_keys} == {key.id: False, other.id: True}
        for wrong in (key.id[:8], other.id[:3], "zzzzzz"):
            with pytest.raises(InputInvalid) as refused:
                app.revoke_key(wrong)
            assert refused.value.code == "key_unknown"
        hook = app.add_webhook("https://example.org/hook")
        assert app.remove_webhook(hook.id[:8]) == hook.id
        assert app.webhooks() == []

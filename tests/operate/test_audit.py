"""An audit of a sound store finds nothing; every kind of damage, done with plain SQL, is found and named."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from perdure import Perdure, Permanent, Pipeline
from perdure.cli.main import app as command
from perdure.operate.audit import Audit
from perdure.store.base import Query
from perdure.store.reading import one

books = Pipeline("books")


@books.stage
def read(doc: object) -> int:
    if "bad" in doc.text:  # type: ignore[attr-defined]
        raise Permanent("it cannot be read")
    return 1


@pytest.fixture
def app(store_url: str) -> Iterator[Perdure]:
    with Perdure(store_url, pipelines=[books]) as app:
        yield app


def execute(app: Perdure, *statements: str) -> None:
    for statement in statements:
        app._call(app.service.store.driver.write(one(Query(statement))))


def found(audit: Audit) -> dict[str, int]:
    return {check.name: check.found for check in audit.checks if check.found}


def worked(app: Perdure) -> tuple[str, str, str]:
    """A document that is done, one that is dead, one that is queued."""
    done, bad = app.add(text="good", pipeline=books).id, app.add(text="bad", pipeline=books).id
    app.run_until_idle()
    return done, bad, app.add(text="later", pipeline=books).id


def test_a_sound_store_is_clean(app: Perdure) -> None:
    worked(app)
    audit = app.audit()
    assert (audit.clean, audit.difference, found(audit)) == (True, 0, {})
    assert audit.states == {"done": 1, "dead": 1, "open": 1}
    assert (audit.balance.accepted, audit.balance.documents, audit.balance.purged) == (3, 3, 0)
    kept = app._call(app.service.store.audited())
    assert (kept.difference, kept.problems) == (0, 0)


def test_a_lost_document_is_missed_and_what_it_left_is_found(app: Perdure) -> None:
    done, *_ = worked(app)
    execute(app, f"DELETE FROM job WHERE document_id = '{done}'", f"DELETE FROM document WHERE id = '{done}'")
    audit = app.audit()
    assert (audit.difference, audit.clean) == (1, False)
    assert found(audit) == {
        "accepted and not there": 1, "rows without their document": 2, "counters that are wrong": 1
    }  # fmt: skip
    (orphans,) = [check for check in audit.checks if check.name == "rows without their document"]
    assert orphans.examples == (f"saved of {done}", f"attempt of {done}")
    assert app._call(app.service.store.audited()).difference == 1


def test_a_document_that_nobody_accepted_is_found(app: Perdure) -> None:
    done, *_ = worked(app)
    columns = (
        "collection, pipeline, kind, name, media_type, content_hash, size, inline, blob, meta, created_ms"
    )
    execute(app, f"INSERT INTO document (org, id, {columns}) SELECT org, 'other', {columns} FROM document "
                 f"WHERE id = '{done}'")  # fmt: skip
    assert found(app.audit()) == {
        "there and never accepted": 1, "in progress without a job": 1, "counters that are wrong": 1
    }  # fmt: skip


#: What is done to a store, in this order, and what an audit calls it.
DAMAGE = [
    ("DELETE FROM job WHERE document_id = '{0}'", "in progress without a job"),
    ("UPDATE document SET state = 'done', finished_ms = 1 WHERE id = '{1}'", "ended with a job that goes on"),
    ("UPDATE job SET state = 'running', token = 5, worker = 424242, lease_until_ms = 1 WHERE document_id = '{2}'",
     "running in no worker"),
    ("UPDATE dead SET document_id = '{done}'", "listed as dead and is not"),
    ("DELETE FROM dead", "dead and not listed"),
    ("UPDATE document SET blob = '" + 64 * "a" + "' WHERE id = '{done}'", "named blobs that are missing"),
    ("UPDATE counter SET n = n + 1 WHERE subject = 'document' AND state = 'dead'", "counters that are wrong"),
    ("INSERT INTO item (org, document_id, pipeline, stage, generation, key, fingerprint, size, token) "
     "VALUES ('default', 'gone', 'p', 's', 1, 'k', 'f', 1, 1)", "rows without their document"),
    ("INSERT INTO saved (org, document_id, pipeline, stage, generation, version, input_hash, output_hash, size, token, "
     "saved_ms, duration_ms) VALUES ('default', 'gone', 'p', 's', 1, 1, '', '', 1, 1, 1, 1)",
     "rows without their document"),
    ("INSERT INTO connection (org, document_id, chunk_id, other_document_id, other_id, score, model) "
     "VALUES ('default', 'gone', 'c', '{done}', 'c', 1, 'm')", "rows without their document"),
    ("INSERT INTO indexed (org, document_id, expected) VALUES ('default', 'gone', 3)",
     "rows without their document"),
    ("INSERT INTO outbox (event_id, org, document_id, name, payload, created_ms, due_ms, job_id, token, wait_ms) "
     "VALUES ('e', 'default', 'gone', 'n', '', 1, 9000000000000, 7, 7, 7)", "rows without their document"),
    ("INSERT INTO chunk (org, document_id, id, position, starts, ends, anchor, text, scope, words) "
     "VALUES ('default', 'gone', 'c', 0, 0, 0, '', '', '', '')", "rows without their document"),
]  # fmt: skip


def test_every_damage_is_found_and_named(app: Perdure) -> None:
    done, *_ = worked(app)
    others = [app.add(text=f"more {n}", pipeline=books).id for n in range(3)]
    before: dict[str, int] = {}
    for damage, name in DAMAGE:
        execute(app, damage.format(*others, done=done))
        audit = app.audit()
        after = found(audit)
        assert after[name] > before.get(name, 0), damage
        assert app._call(app.service.store.audited()).problems == sum(after.values())
        assert not audit.clean
        before = {} if name == "listed as dead and is not" else after


def test_a_blob_that_nobody_names_is_told_and_is_no_difference(app: Perdure, store_url: str) -> None:
    digest = app._call(app.service.blobs.put(b"nobody's"))
    assert found(app.audit()) == {}, "it may be about to be named"
    if path := app._call(app.service.blobs.path(digest)):
        os.utime(path, (1, 1))
    else:
        execute(app, "UPDATE blob_head SET touched_ms = 1")
    audit = app.audit()
    assert (found(audit), audit.clean) == ({"blobs that nobody names": 1}, True)


def test_counters_are_counted_anew_where_that_is_asked_for(app: Perdure) -> None:
    worked(app)
    execute(app, "UPDATE counter SET n = n + 1 WHERE subject = 'document'")
    assert not app.audit().clean
    assert app.audit(recount=True, who="ann").clean
    assert app.audit().clean
    assert [(act.who, act.verb) for act in app.acts(limit=1)] == [("ann", "recount")]


def test_the_sum_is_of_the_rows_whatever_the_counters_say(app: Perdure) -> None:
    worked(app)
    execute(app, "UPDATE counter SET n = n + 7 WHERE subject = 'document'")
    audit = app.audit()
    assert sum(audit.states.values()) + audit.balance.purged == audit.balance.accepted
    assert audit.difference == 0


def test_what_is_purged_is_no_loss(app: Perdure) -> None:
    _, bad, _ = worked(app)
    assert app._call(app.service.store.purge([("default", bad)])) == {("default", bad): "purged"}
    audit = app.audit()
    assert (audit.clean, audit.balance.purged, audit.difference) == (True, 1, 0)


def test_news_of_a_purged_document_is_still_told(app: Perdure) -> None:
    _, bad, _ = worked(app)
    execute(
        app,
        "INSERT INTO outbox (event_id, org, document_id, name, payload, created_ms, due_ms) "
        f"VALUES ('e1', 'default', '{bad}', 'ParseFailed', '{{}}', 1, 1)",
    )
    assert app._call(app.service.store.purge([("default", bad)])) == {("default", bad): "purged"}
    assert [event.name for event in app._call(app.service.store.outbox(10))] == ["ParseFailed"]
    assert app.audit().clean


def test_the_command_tells_by_its_exit_status(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/books.db"
    with Perdure(url, pipelines=[books]) as app:
        done, *_ = worked(app)
        clean = CliRunner().invoke(command, ["audit", "--store", url])
        execute(
            app, f"DELETE FROM job WHERE document_id = '{done}'", f"DELETE FROM document WHERE id = '{done}'"
        )
        told = CliRunner().invoke(command, ["audit", "--store", url, "--json"])
    assert clean.exit_code == 0, clean.output
    assert "3 accepted = 1 done + 1 in progress + 1 dead + 0 cancelled + 0 purged" in clean.output
    assert told.exit_code == 1
    facts = json.loads(told.stdout)
    assert (facts["difference"], facts["clean"]) == (1, False)

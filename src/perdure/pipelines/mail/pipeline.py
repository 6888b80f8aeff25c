"""The mail pipeline: from an archive to messages, threads and summaries, each a document with attempts of its own.

    mail            survey    what is in it, before anything is made of it
                    split     every message becomes a document, some at a time
                    thread    when all of those have ended: every thread becomes one
                    close     when these have ended, too: the account, which must agree
    mail-message    see message_pipeline
    mail-thread     see thread_pipeline

What does not fit or cannot be decoded is counted and fails nothing else. An archive that is added again with more in it
makes documents of what is new, and threads that grew are summarised again.
"""

from __future__ import annotations

from pathlib import Path

from perdure import Context, Document, Gathered, Pipeline, Result, Row
from perdure.core.frozen import frozen
from perdure.engine.result import SpawnDocument
from perdure.pipelines.bounds import STAGE_S
from perdure.pipelines.mail.archive import read_entry
from perdure.pipelines.mail.message_pipeline import QUEUE, messages
from perdure.pipelines.mail.survey import Listed, Survey, batches, shape
from perdure.pipelines.mail.survey import survey as surveyed
from perdure.pipelines.mail.thread_pipeline import Sent, Talk, threads
from perdure.pipelines.mail.threads import Thread
from perdure.settings import current

ARCHIVE_MB = 1_024
ARCHIVE_S, STALL_S = 7_200.0, 300.0
NAME_CHARS_MAX = 120
HEAD_BYTES, HEAD_BYTES_MIN = 64 << 10, 1 << 10  # of a message, for the summary of its thread
TALK_BYTES = 16 << 20  # of them in one thread, unless it has very many
#: What each process would import anew.
MODULES = ("perdure.pipelines.mail.survey", "pydantic")

mails = Pipeline(
    "mail",
    queue=QUEUE,
    attempts=lambda: current().retry_job_max_attempts_archives,
    backoff_s=lambda: current().retry_job_base_delay_seconds,
    backoff_cap_s=lambda: current().retry_job_max_delay_seconds,
    then=[messages, threads],
    fetched=True,
)


@frozen
class Threaded:
    """The threads that were made documents of, by their shape, and of which form of the archive."""

    number: int
    shapes: dict[str, str]


@frozen
class Account:
    """What became of an archive, at the time it was closed; `documents` are all that it ever had."""

    messages: int
    duplicates: int
    bad: int
    gone: int
    message_documents: int
    messages_dead: int
    threads: int
    superseded: int
    thread_documents: int
    threads_dead: int
    threads_degraded: int
    summaries: int


@mails.stage(
    isolate=True,
    sandbox=True,
    memory_mb=ARCHIVE_MB,
    timeout=ARCHIVE_S,
    stall=STALL_S,
    preload=MODULES,
    lease_s=60,
)
def survey(doc: Document, ctx: Context, previous: Survey | None) -> Survey:
    """Its messages and threads; of one that only grew, no more than its end is read."""
    found = surveyed(doc.path, previous, lambda offset: ctx.progress(offset, doc.size))
    for one in found.bad:
        what = {"length": one.length, "code": one.code, "problem": one.problem}
        ctx.emit(Row("bad_messages", offset=one.offset, data=what))
    return found


@mails.stage(
    isolate=True,
    sandbox=True,
    memory_mb=ARCHIVE_MB,
    timeout=ARCHIVE_S,
    stall=STALL_S,
    preload=MODULES,
    lease_s=60,
)
def split(doc: Document, ctx: Context, survey: Survey, previous: list[str] | None) -> list[str]:
    """Each batch of messages is saved with the documents that it becomes; the identities of all there ever were."""
    known, path = set(previous or ()), doc.path
    new = [one for one in survey.letters if one.letter.identity not in known]
    for batch in ctx.items(batches(new, _length), key=lambda batch: batch[0].letter.identity):
        if not ctx.restored:
            for one in batch:
                ctx.emit(_message(path, one))
    return sorted(known | {one.letter.identity for one in new})


def _length(one: Listed) -> int:
    return one.length


def _message(path: Path, one: Listed) -> SpawnDocument:
    letter = one.letter
    return messages.child(
        letter.identity,
        data=read_entry(path, one.offset, one.length),
        name=letter.subject[:NAME_CHARS_MAX],
        meta={"message_id": letter.message_id, "offset": one.offset},
        collection="messages",
    )


@mails.stage(
    isolate=True,
    sandbox=True,
    memory_mb=ARCHIVE_MB,
    timeout=ARCHIVE_S,
    stall=STALL_S,
    preload=MODULES,
    lease_s=60,
)
def thread(
    doc: Document, ctx: Context, survey: Survey, gathered: Gathered, previous: Threaded | None
) -> Threaded:
    """Each batch of threads is saved with its documents. One that is as it was is left alone, one that is no more has
    a document that says so."""
    places = {one.letter.identity: one for one in survey.letters}
    # what an interrupted form of the archive made of a thread is not known: then all of them are told again
    known = previous.shapes if previous is not None and previous.number >= survey.number - 1 else {}
    now, path = survey.threads(), doc.path
    shapes = {one.id: shape(one) for one in now}
    changed = [one for one in now if known.get(one.id) != shapes[one.id]]

    def size(one: Thread) -> int:
        return sum(min(_share(one), places[identity].length) for identity in one.messages)

    for batch in ctx.items(batches(changed, size), key=lambda batch: batch[0].id):
        if not ctx.restored:
            for one in batch:
                sent = tuple(_sent(path, places[identity], _share(one)) for identity in one.messages)
                ctx.emit(_thread(Talk(one.id, one.subject, one.nodes, sent)))
    for id_, heirs in survey.superseded(now).items():
        ctx.emit(_thread(Talk(id_, superseded_by=heirs)))
    return Threaded(survey.number, shapes)


def _share(one: Thread) -> int:
    """How many bytes of each message its document has; in a very long thread fewer."""
    return min(HEAD_BYTES, max(HEAD_BYTES_MIN, TALK_BYTES // len(one.messages)))


def _sent(path: Path, one: Listed, bytes_max: int) -> Sent:
    return Sent(one.letter.identity, read_entry(path, one.offset, one.length)[:bytes_max])


def _thread(talk: Talk) -> SpawnDocument:
    name = talk.subject[:NAME_CHARS_MAX]
    return threads.child(talk.id, json=talk, name=name, collection="threads", refresh=True)


@mails.stage(timeout=STAGE_S)
def close(survey: Survey, thread: Threaded, gathered: Gathered) -> Result[Account]:
    """The account of it all. Messages and threads that are dead are counted; they do not fail the archive."""
    letters = gathered.documents.get(messages.name, {})
    talks = gathered.documents.get(threads.name, {})
    superseded = len(survey.members) - len(thread.shapes)
    account = Account(
        messages=len(survey.letters),
        duplicates=survey.duplicates,
        bad=len(survey.bad),
        gone=len(survey.gone),
        message_documents=sum(letters.values()),
        messages_dead=letters.get("dead", 0),
        threads=len(thread.shapes),
        superseded=superseded,
        thread_documents=sum(talks.values()),
        threads_dead=talks.get("dead", 0),
        threads_degraded=gathered.degraded.get(threads.name, 0),
        summaries=talks.get("done", 0) - superseded,
    )
    return Result(account, rows=[Row("archive", data=account)])


@close.ensure
def a_document_for_each(survey: Survey, close: Account) -> bool:
    """Every message that was listed has its document, and every thread."""
    listed, made = close.messages + close.gone, close.threads + close.superseded
    return (close.message_documents, close.thread_documents) == (listed, made)

"""When things fail: what is tried again, what is not, and what it costs."""

from __future__ import annotations

from perdure import Context, DependencyDown, Document, Permanent, Pipeline, RetryLater, Transient
from perdure.core.outcome import Failure
from perdure.testing import drain, failing, tick, trial


def test_a_failed_attempt_is_repeated_after_two_seconds_then_four_then_the_document_is_dead() -> None:
    letters = Pipeline("letters")

    @letters.stage
    def send(doc: Document) -> None:
        raise ConnectionError("no route")

    with trial(letters) as app:
        added = app.add(text="hello", pipeline=letters)
        assert drain(app).dead == 1
        assert [(a.attempt, a.outcome, a.delay_ms) for a in app.attempts(added.id)] == [
            (1, "retry", 2_000),
            (2, "retry", 4_000),
            (3, "dead", None),
        ]
        assert app.status(added.id).error_message == "no route"


def test_stages_that_were_saved_do_not_run_again() -> None:
    letters = Pipeline("letters")
    written: list[str] = []

    @letters.stage
    def write(doc: Document) -> str:
        written.append(doc.text)
        return doc.text

    @letters.stage
    def send(write: str) -> str:
        return write

    with trial(letters) as app, failing(send, Transient("busy"), Transient("busy")):
        app.add(text="hello", pipeline=letters)
        assert drain(app).done == 1
        assert written == ["hello"]


def test_a_long_stage_saves_item_by_item_and_repeats_only_the_one_in_hand() -> None:
    books = Pipeline("books")
    paid: list[int] = []

    def ask_model(page: int) -> str:
        paid.append(page)
        if paid.count(4) == 1 and page == 4:
            raise Transient("the model is busy")
        return f"page {page}"

    @books.stage
    def describe(doc: Document, ctx: Context) -> list[str]:
        return list(ctx.items(range(1, 6), run=ask_model))

    with trial(books) as app:
        added = app.add(text="a book of five pages", pipeline=books)
        assert drain(app).done == 1
        assert paid == [1, 2, 3, 4, 4, 5]
        assert app.output(added.id, "describe") == ["page 1", "page 2", "page 3", "page 4", "page 5"]


def test_what_no_attempt_can_help_is_dead_at_once_with_its_code() -> None:
    books = Pipeline("books")

    @books.stage
    def extract(doc: Document) -> str:
        if not doc.text:
            raise Permanent("empty_document")
        return doc.text

    with trial(books) as app:
        added = app.add(text="", pipeline=books)
        assert drain(app).dead == 1
        assert app.status(added.id).error_code == "empty_document"
        assert app.status(added.id).attempts_made == 1


def test_not_now_costs_no_attempt() -> None:
    books = Pipeline("books", attempts=1)

    @books.stage
    def embed(doc: Document) -> int:
        return 1

    with trial(books) as app, failing(embed, RetryLater("quota", delay_s=600), RetryLater(delay_s=600)):
        added = app.add(text="a", pipeline=books)
        assert drain(app).done == 1
        assert app.status(added.id).attempts_made == 1


def test_an_outage_holds_documents_instead_of_failing_them() -> None:
    books = Pipeline("books")

    @books.stage
    def extract(doc: Document) -> str:
        return doc.text

    @books.stage(needs=["openai"])
    def embed(extract: str) -> int:
        return len(extract)

    with trial(books) as app:
        added = app.add(text="a", pipeline=books)
        app.hold("openai", "their status page says so")
        assert drain(app).held == 1
        app.clock.advance(7 * 86_400)
        assert drain(app).held == 1
        assert (app.status(added.id).state, app.status(added.id).attempts_made) == ("held", 0)
        app.release("openai")
        assert drain(app).done == 1


def test_a_stage_can_say_that_its_dependency_is_down() -> None:
    books = Pipeline("books")

    @books.stage(needs=["openai"])
    def embed(doc: Document) -> int:
        return 1

    with trial(books) as app, failing(embed, *[DependencyDown("openai")] * 5):
        app.add(text="a", pipeline=books)
        assert drain(app).done == 1


def test_done_is_only_what_keeps_its_contract() -> None:
    books = Pipeline("books")
    lost = [1]

    @books.stage
    def chunk(doc: Document) -> list[str]:
        return doc.text.split()

    @books.stage
    def embed(chunk: list[str]) -> int:
        return len(chunk) - (lost.pop() if lost else 0)

    @embed.ensure
    def all_embedded(chunk: list[str], embed: int) -> bool:
        return len(chunk) == embed

    with trial(books) as app:
        added = app.add(text="to be or not", pipeline=books)
        tick(app)
        assert app.status(added.id).state == "waiting"
        assert app.attempts(added.id)[0].error_code == "contract_broken"
        assert drain(app).done == 1
        assert app.output(added.id, "embed") == 4


def test_a_dead_document_can_be_requeued_and_goes_on_where_it_stopped() -> None:
    letters = Pipeline("letters")
    written: list[str] = []

    @letters.stage
    def write(doc: Document) -> str:
        written.append(doc.text)
        return doc.text

    @letters.stage
    def send(write: str) -> str:
        return write

    with trial(letters) as app:
        with failing(send, *[Transient("busy")] * 3):
            added = app.add(text="hello", pipeline=letters)
            assert drain(app).dead == 1
        assert app.requeue(added.id, reason="the post office is open again") == "requeued"
        assert drain(app).done == 1
        assert written == ["hello"]
        assert [a.generation for a in app.attempts(added.id)] == [1, 1, 1, 2]


def test_somebody_can_be_told_when_a_document_dies() -> None:
    letters = Pipeline("letters")
    told: list[str] = []

    @letters.stage
    def send(doc: Document) -> None:
        raise Permanent("no_such_address")

    @letters.on_dead
    def tell(doc: Document, failure: Failure) -> None:
        told.append(f"{doc.text}: {failure.code} in {failure.stage}")

    with trial(letters) as app:
        app.add(text="hello", pipeline=letters)
        drain(app)
        assert told == ["hello: no_such_address in send"]

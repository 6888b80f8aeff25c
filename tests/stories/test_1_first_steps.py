"""First steps: documents go through pipelines of plain functions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from perdure import Context, Document, Pipeline, Result, Row
from perdure.testing import drain, trial


def test_a_pipeline_is_a_list_of_functions_that_run_in_order() -> None:
    letters = Pipeline("letters")

    @letters.stage
    def read(doc: Document) -> str:
        return doc.text

    @letters.stage
    def shout(read: str) -> str:  # a parameter named like an earlier stage gets what that stage gave
        return read.upper()

    with trial(letters) as app:
        added = app.add(text="hello", pipeline=letters)
        assert drain(app).done == 1
        assert app.status(added.id).state == "done"
        assert app.output(added.id, "shout") == "HELLO"


def test_a_document_is_text_bytes_json_or_a_file(tmp_path: Path) -> None:
    anything = Pipeline("anything")

    @anything.stage
    def size(doc: Document) -> int:
        return len(doc.data)

    @anything.stage
    def kind(doc: Document) -> str:
        return f"{doc.kind} {doc.name}".strip()

    page = tmp_path / "page.html"
    page.write_text("<p>hello")
    with trial(anything) as app:
        added = [
            app.add(text="hello", pipeline=anything),
            app.add(data=b"\x00\x01", pipeline=anything),
            app.add(json={"hello": "world"}, pipeline=anything),
            app.add(path=page, pipeline=anything),
        ]
        drain(app)
        assert [app.output(a.id, "kind") for a in added] == ["text", "bytes", "json", "bytes page.html"]
        assert [app.output(a.id, "size") for a in added] == [5, 2, 17, 8]


def test_adding_the_same_document_again_is_answered_and_not_done_twice() -> None:
    letters = Pipeline("letters")

    @letters.stage
    def read(doc: Document) -> str:
        return doc.text

    with trial(letters) as app:
        first = app.add(text="hello", pipeline=letters)
        second = app.add(text="hello", pipeline=letters)
        assert (first.answer, second.answer) == ("added", "exists")
        assert first.id == second.id
        assert drain(app).done == 1


def test_async_stages_and_plain_ones_mix() -> None:
    pages = Pipeline("pages")

    @pages.stage
    async def fetch(doc: Document) -> str:
        return f"<p>{doc.text}"

    @pages.stage
    def extract(fetch: str) -> str:
        return fetch.removeprefix("<p>")

    with trial(pages) as app:
        added = app.add(text="hello", pipeline=pages)
        drain(app)
        assert app.output(added.id, "extract") == "hello"


def test_what_a_stage_gives_has_the_type_it_is_annotated_with() -> None:
    books = Pipeline("books")

    @dataclass
    class Text:
        markdown: str
        pages: int

    @books.stage
    def extract(doc: Document) -> Text:
        return Text(doc.text, 1)

    @books.stage
    def chunk(extract: Text) -> list[str]:
        return extract.markdown.split()

    with trial(books) as app:
        added = app.add(text="to be or not", pipeline=books)
        drain(app)
        assert app.output(added.id, "extract") == Text("to be or not", 1)
        assert app.output(added.id, "chunk") == ["to", "be", "or", "not"]


def test_rows_are_stored_under_their_key_and_written_again_they_overwrite() -> None:
    books = Pipeline("books")

    @books.stage
    def count(doc: Document, ctx: Context) -> None:
        for word in doc.text.split():
            ctx.emit(Row("words", word=word, data=len(word)))

    with trial(books) as app:
        added = app.add(text="to be or not to be", pipeline=books)
        drain(app)
        assert app.rows(added.id, "words") == [
            ({"word": "be"}, 2),
            ({"word": "not"}, 3),
            ({"word": "or"}, 2),
            ({"word": "to"}, 2),
        ]


def test_a_stage_can_start_other_documents_and_follow_up_jobs() -> None:
    mails, files, thanks = Pipeline("mails"), Pipeline("files"), Pipeline("thanks")
    thanked: list[str] = []

    @files.stage
    def read(doc: Document) -> str:
        return doc.text

    @thanks.stage
    def say(doc: Document, input: dict[str, str]) -> None:
        thanked.append(input["to"])

    @mails.stage
    def split(doc: Document) -> Result[int]:
        parts = doc.text.split()
        children = [files.child(f"part-{n}", text=part) for n, part in enumerate(parts)]
        return Result(len(parts), spawn=[*children, thanks.job(doc, to="Ada")])

    with trial([mails, files, thanks]) as app:
        app.add(text="one two three", pipeline=mails)
        assert drain(app).done == 4  # the mail and its three files; a follow-up is no document
        assert thanked == ["Ada"]


def test_the_more_important_document_goes_first_and_one_for_tomorrow_waits() -> None:
    letters = Pipeline("letters")
    order: list[str] = []

    @letters.stage
    def read(doc: Document) -> None:
        order.append(doc.text)

    with trial(letters, concurrency=1) as app:
        app.add(text="tomorrow", pipeline=letters, delay_s=86_400)
        app.add(text="usual", pipeline=letters)
        app.add(text="urgent", pipeline=letters, priority=10)
        drain(app)
        assert order == ["urgent", "usual", "tomorrow"]

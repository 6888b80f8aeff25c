"""Text that is there is read, or the document says that it was not."""

from __future__ import annotations

import io

import pikepdf
import pytest
from pikepdf import Array, Dictionary, Name, String

from perdure.pipelines.document import documents
from perdure.pipelines.extract import extract, open_reader, summarise
from perdure.testing import drain, trial
from tests.pipelines.extract import made
from tests.pipelines.extract.made import paragraph, prose, run


def put_in(text: str) -> bytes:
    """A Word document that is mostly a file which is put into it, in a form that is not read."""
    chunk = '<w:altChunk r:id="file"/>'
    body = paragraph(run("A short cover.")) + chunk
    return made.docx(body, links={"file": "afchunk.mht"}, more={"word/afchunk.mht": text.encode()})


def portfolio(files: dict[str, bytes]) -> bytes:
    with pikepdf.open(io.BytesIO(made.pdf(["Open this portfolio in a viewer."]))) as opened:
        for name, content in files.items():
            opened.attachments[name] = content
        opened.Root.Collection = Dictionary(View=Name.D)
        return saved(opened)


def saved(opened: pikepdf.Pdf) -> bytes:
    out = io.BytesIO()
    opened.save(out, object_stream_mode=pikepdf.ObjectStreamMode.generate)
    return out.getvalue()


def form(*, filled: bool) -> bytes:
    """A form in XML; with `filled` its fields are on the page, too, otherwise the page only asks to wait."""
    template = (
        b'<template xmlns="http://www.xfa.org/schema/xfa-template/2.8/"><subform><draw><value><text>Name of the '
        b"applicant</text></value></draw></subform></template>"
    )
    data = (
        b'<d:datasets xmlns:d="http://www.xfa.org/schema/xfa-data/1.0/"><d:data><n>Ada Lovelace</n></d:data>'
        b"</d:datasets>"
    )
    with pikepdf.open(io.BytesIO(made.pdf(["Please wait."]))) as opened:
        packets = [
            String("template"),
            opened.make_stream(template),
            String("datasets"),
            opened.make_stream(data),
        ]
        opened.Root.AcroForm = Dictionary(Fields=Array([]), XFA=Array(packets))
        if not filled:
            opened.Root.NeedsRendering = True
            return saved(opened)
        page = opened.pages[0]
        shown = opened.make_stream(
            b"/Tx BMC BT /F1 9 Tf 2 2 Td (The field of Ada Lovelace) Tj ET EMC",
            Type=Name.XObject, Subtype=Name.Form, BBox=Array([0, 0, 200, 20]),
            Resources=Dictionary(Font=Dictionary(F1=page.Resources.Font.F1)),
        )  # fmt: skip
        field = Dictionary(
            Type=Name.Annot, Subtype=Name.Widget, FT=Name.Tx, T=String("f"), V=String("The field of Ada Lovelace"),
            Rect=Array([50, 500, 250, 520]), F=4, AP=Dictionary(N=shown),
        )  # fmt: skip
        page.Annots = opened.Root.AcroForm.Fields = Array([opened.make_indirect(field)])
        return saved(opened)


def text_of(content: bytes, name: str = "") -> str:
    return "\n".join(part.text for part in extract(content, name=name))


def partial(content: bytes) -> str:
    with open_reader(content) as reader:
        return summarise([reader.read(key) for key in reader.parts]).partial


def test_a_form_that_is_also_xml_keeps_its_fields() -> None:
    assert "The field of Ada Lovelace" in text_of(form(filled=True))


def test_a_form_that_is_only_xml_is_read_from_it() -> None:
    text = text_of(form(filled=False))
    assert "Name of the applicant" in text
    assert "Ada Lovelace" in text


def test_a_portfolio_is_the_text_of_its_files() -> None:
    content = portfolio({"a.txt": b"Whales and ships.", "b.pdf": made.pdf(["A paper on fog."])})
    text = text_of(content)
    assert "Whales and ships." in text
    assert "A paper on fog." in text
    assert not partial(content)


def test_a_file_of_a_portfolio_that_cannot_be_read_is_named_and_marked() -> None:
    content = portfolio({"table.xlsx": b"PK\x03\x04" + bytes(5_000)})
    assert "table.xlsx" in text_of(content)
    assert "not read" in text_of(content)
    assert partial(content)


def test_a_portfolio_in_a_portfolio_is_not_opened() -> None:
    inner = portfolio({"deep.txt": b"Down there."})
    assert "Down there." not in text_of(portfolio({"inner.pdf": inner}))


def test_text_in_a_drawing_of_a_book_is_read() -> None:
    drawing = '<svg xmlns="http://www.w3.org/2000/svg"><title>not this</title><text>Plate of the harbour</text></svg>'
    text = text_of(made.epub("A book", {"One": f"<p>{prose(9)}</p>{drawing}"}))
    assert "Plate of the harbour" in text
    assert "not this" not in text


def test_what_is_put_into_a_word_document_and_not_read_is_noticed() -> None:
    assert partial(put_in(prose(500)))
    assert not partial(put_in("few words"))
    assert not partial(made.detailed_docx())


@pytest.mark.parametrize("cells", [False, True])
def test_a_document_that_is_read_in_part_is_marked(store_url: str, cells: bool) -> None:
    """It is done and found by what was read; nothing is tried again until somebody asks."""
    with trial(documents, store=store_url, cells=cells) as app:
        id_ = app.add(data=put_in(prose(500)), name="a.docx", pipeline=documents).id
        whole = app.add(data=made.detailed_docx(), name="b.docx", pipeline=documents).id
        drain(app)
        assert [app.status(one).state for one in (id_, whole)] == ["done", "done"]
        assert [app.status(one).degraded for one in (id_, whole)] == [True, False]
        assert "partial_text" in app.why(id_).sentence
        assert [hit.document_id for hit in app.search("short cover")] == [id_]
        attempts = len(app.attempts(id_))
        app.clock.advance(100_000)
        drain(app)
        assert len(app.attempts(id_)) == attempts
        app.requeue(id_)
        drain(app)
        assert (app.status(id_).state, app.status(id_).degraded) == ("done", True)

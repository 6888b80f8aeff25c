"""Each format in detail: what becomes of headings, lists, tables, notes, links, charsets, attachments."""

from __future__ import annotations

import email.message
import io

import pikepdf
import pytest

from perdure.errors import Permanent
from perdure.pipelines.extract import Part, anchor_at, anchors, extract, join, open_reader, summarise
from perdure.pipelines.extract.caps import ATTRIBUTES_MAX
from perdure.pipelines.extract.charset import decode, decode_markup
from perdure.pipelines.extract.language import language_of
from perdure.pipelines.extract.markup import parse_html, to_markdown
from tests.pipelines.extract import made
from tests.pipelines.extract.hostile import chapter, epub, page_pdf, pdf, stream


def markdown(html: str) -> str:
    return to_markdown(parse_html(html))


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("<h2>A <i>b</i> c</h2><p>d", "## A *b* c\n\nd"),
        ("<p>a<!-- x -->b <script>no</script>c</p>", "ab c"),
        ("<ul><li>a<li>b<ol start=3><li>c<li>d</ol></ul>", "- a\n- b\n\n  1. c\n  2. d"),
        ("<pre>  a\n    b</pre>", "```\n  a\n    b\n```"),
        ("<p>Use <code>x y</code> and <a href='https://e.org/'>this</a>, <a href='#n'>not that</a>",
         "Use `x y` and [this](https://e.org/), not that"),
        ("<table><tr><th>a<th>b</tr><tr><td>1<td>2|3</table>", "| a | b |\n| --- | --- |\n| 1 | 2\\|3 |"),
        ("<blockquote>a<p>b</blockquote>", "> a\n>\n> b"),
        ("<p># not a heading", "\\# not a heading"),
        ("<div>bare <span>text</span><div>kept</div>tail</div>", "bare text\n\nkept\n\ntail"),
        ("<h1>Title<a class=headerlink href='#t'>¶</a></h1>", "# Title"),
        ("<p>a<br>b<p>x &amp; y &nbsp;z", "a\nb\n\nx & y \xa0z"),
        ("<dl><dt>term<dd>meaning</dl>", "term\n\nmeaning"),
        ("<p>so <math><mi>x</mi><mo>=</mo><mn>2</mn></math> here", "so x=2 here"),
    ],
)  # fmt: skip
def test_markup(html: str, expected: str) -> None:
    assert markdown(html) == expected


def test_a_tag_has_a_most_of_attributes_however_they_are_written() -> None:
    many = [f"a{n}" for n in range(ATTRIBUTES_MAX + 1)]
    for between in (" ", "/", "='>' ", '="a b=c>" ', "=1\n", "\t=\f' '/", "= =<\r"):
        paragraph = parse_html(f"<p {between.join(many[:-1])}>x").find(".//p")
        assert paragraph is not None
        assert len(paragraph.attrib) == ATTRIBUTES_MAX
        with pytest.raises(Permanent, match="attributes") as refused:
            parse_html(f"<p {between.join(many)}>x")
        assert refused.value.code == "document_bomb"
    assert markdown("<a b=1>c</a> " * (ATTRIBUTES_MAX + 1)).startswith("c c c")


def test_sections_follow_the_main_headings() -> None:
    text = "intro\n\n# Title\n\nx\n\n## A\n\n```\n# no heading\n```\n\n### a1\n\n## B\n\ny"
    parts = list(extract(text.encode(), name="notes.md"))
    assert [part.title for part in parts] == ["", "Title", "A", "B"]
    assert [heading.title for heading in parts[2].headings] == ["A", "a1"]
    assert [anchor for _, anchor in anchors(join(parts))] == [f"section={number}" for number in range(1, 5)]
    assert "\n\n".join(part.text for part in parts) == text


def test_plain_text_stays_as_it_is() -> None:
    (part,) = extract(b"First line\r\n# a comment\n\ttab\n")
    assert (part.text, part.title, part.headings) == ("First line\n# a comment\n\ttab\n", "First line", ())


@pytest.mark.parametrize(
    ("data", "declared", "expected"),
    [
        ("Grüße".encode(), "", "Grüße"),
        ("Grüße".encode("latin-1"), "", "Grüße"),
        ("Grüße".encode("cp1252"), "no-such-charset", "Grüße"),
        ("Привет, как дела?".encode("koi8-r"), "koi8-r", "Привет, как дела?"),
        ("日本語のテキスト".encode("shift_jis"), "shift_jis", "日本語のテキスト"),
        ("wide\u2026".encode("utf-16"), "", "wide\u2026"),
        ("wide text".encode("utf-16-be"), "", "wide text"),
        (b"\xef\xbb\xbfmarked", "latin-1", "marked"),
        (b"a\xffb", "utf-8", "a\xffb"),
        (b"data", "base64", "data"),
    ],
)
def test_charsets(data: bytes, declared: str, expected: str) -> None:
    assert decode(data, declared) == expected


def test_a_page_may_say_its_charset_itself() -> None:
    page = '<meta http-equiv="Content-Type" content="text/html; charset=windows-1251"><p>Привет'
    assert decode_markup(page.encode("cp1251")).endswith("Привет")


def test_a_chapter_that_is_not_quite_xml() -> None:
    (first, second) = extract(
        epub([chapter(b"<p>open &nbsp;&eacute; <br> text"), chapter(b"<h2>Two</h2>&copy; <a id='x'/>y")])
    )
    assert first.text == "open \xa0é\ntext"
    assert (second.text, second.title) == ("## Two\n\n© y", "Two")


def test_docx_in_detail() -> None:
    with open_reader(made.detailed_docx()) as reader:
        parts = [reader.read(key) for key in reader.parts]
    assert (reader.title, [part.title for part in parts]) == ("All of it", ["All of it", "One", "Two"])
    assert [heading.title for part in parts for heading in part.headings] == ["All of it", "One", "Two"]
    assert "\n\n".join(part.text for part in parts) == (
        "# All of it\n\n# One\n\nA **bold** and *slanted* [link](https://example.org/).[^1]\n\n- a\n  - b\n- c\n\n"
        "Between the lists\n\n1. first\n1. second\n\n| h | i |\n| --- | --- |\n| 1 | 2 |\n\n# Two\n\nquoted\n\n"
        "[^1]: A note."
    )


@pytest.mark.parametrize("contents", ["nav", "ncx", ""])
def test_epub_in_detail(contents: str) -> None:
    with open_reader(made.detailed_epub(contents)) as reader:
        parts = [reader.read(key) for key in reader.parts]
        summary = summarise(parts, reader.title, reader.language)
    named = ["Foreword"] if contents else []
    assert (summary.title, summary.language) == ("A detailed book", "en")
    assert [heading.title for heading in summary.outline] == [*named, "One", "Two", "Three"]
    assert [part.anchor for part in parts] == [f"chapter={number}" for number in range(1, 5)]
    assert parts[0].text == f"Before all. {made.prose(60, 1)}"
    assert parts[1].text.startswith("# One\n\nSome **bold** and *slanted* text.\n\n- a\n- b\n\n")
    assert parts[2].text == "# Two\n\n| h | i |\n| --- | --- |\n| 1 | 2 |"
    assert parts[3].text == "# Three\n\n> quoted\n\n```\nx = 1\n```\n\nA [link](https://e.org/)"


def test_a_book_of_many_chapters_keeps_each_and_its_place() -> None:
    chapters = {
        f"Chapter {number}": f"<h1>Chapter {number}</h1><p>{made.prose(30, number)}</p><p>End of {number}.</p>"
        for number in range(1, 201)
    }
    parts = list(extract(made.epub("A long book", chapters)))
    assert [part.title for part in parts] == list(chapters)
    assert all(made.prose(30, number) in part.text for number, part in enumerate(parts, 1))
    markdown = join(parts)
    assert anchor_at(markdown, markdown.index("End of 121.")) == "chapter=121"


def test_the_outline_of_a_pdf_leads_to_its_pages() -> None:
    pages = [
        "A manual\nof few words",
        "1 Scope\nWhat it holds for",
        "1.1 Terms\nused here",
        "2 Scope\n# of others",
    ]
    outline = [("Scope", 2), ("1.1 Terms", 3), ("Scope", 4)]
    with open_reader(made.pdf(pages, title="The Manual", outline=outline)) as reader:
        parts = [reader.read(key) for key in reader.parts]
    summary = summarise(parts, reader.title)
    assert summary.title == "The Manual"
    assert [(heading.title, heading.anchor) for heading in summary.outline] == [
        ("Scope", "page=2"), ("1.1 Terms", "page=3"), ("Scope", "page=4"),
    ]  # fmt: skip
    assert [part.text for part in parts] == [
        pages[0], "# 1 Scope\n\nWhat it holds for", "# 1.1 Terms\n\nused here", "# 2 Scope\n\n\\# of others",
    ]  # fmt: skip
    markdown = join(parts)
    assert anchor_at(markdown, markdown.index("used here")) == "page=3"


def test_a_pdf_without_a_title_is_called_as_its_first_line() -> None:
    with open_reader(made.pdf(["\n \nA first line\nand more", "another"])) as reader:
        assert reader.title == "A first line"
        assert [reader.read(key).text for key in reader.parts] == ["A first line\nand more", "another"]


@pytest.mark.parametrize("streams", [True, False])
def test_every_word_of_a_pdf_is_found(streams: bool) -> None:
    parts = list(extract(made.long_pdf(12, 300, streams=streams)))
    assert [part.anchor for part in parts] == [f"page={number}" for number in range(1, 13)]
    for number, part in enumerate(parts, 1):
        assert part.text.split() == [*f"Page {number} of 12".split(), *made.prose(300, number).split()]


def message(**headers: str) -> email.message.EmailMessage:
    made = email.message.EmailMessage()
    for name, value in headers.items():
        made[name.replace("_", "-")] = value
    return made


def test_mail() -> None:
    mail = message(
        From="Ä <a@example.org>", To="b@example.org", Subject="Grüße", Date="Mon, 16 Nov 2026 03:00:00 +0000"
    )
    mail.set_content("Plain text\nwith lines\n")
    mail.add_alternative("<p>HTML <b>text</b></p>", subtype="html")
    mail.add_attachment(b"12345", maintype="application", subtype="pdf", filename="bill.pdf")
    (part,) = extract(mail.as_bytes())
    assert part.title == "Grüße"
    assert part.text == (
        "# Grüße\n\n- From: Ä <a@example.org>\n- To: b@example.org\n- Date: Mon, 16 Nov 2026 03:00:00 +0000\n\n"
        "Plain text\nwith lines\n\n## Attachments\n\n- bill.pdf (application/pdf, 5 bytes)"
    )


def test_the_kind_of_an_attachment_is_cleaned() -> None:
    (part,) = extract(
        b"From: a@example.org\nSubject: x\nMIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=q\n\n--q\n\nx\n"
        b"--q\nContent-Type: appl\x00cation/pdf\nContent-Disposition: attachment\n\nAAAA\n--q--\n"
    )
    assert "\x00" not in part.text


def test_mail_that_is_only_html() -> None:
    mail = message(From="a@example.org", Subject="x")
    mail.set_content("<p>HTML <b>text</b></p>", subtype="html")
    assert next(extract(mail.as_bytes())).text.endswith("HTML **text**")


ODD = {
    "unknown charset": b"Content-Type: text/plain; charset=klingon\n\nqapla\xe9",
    "wrong charset": b"Content-Type: text/plain; charset=us-ascii\n\nqapl\xc3\xa9",
    "broken base64": b"Content-Type: text/plain\nContent-Transfer-Encoding: base64\n\ncWFwbGE=\n*!*",
    "no boundary": b"Content-Type: multipart/mixed\n\nqapla",
    "boundary never closed": b'Content-Type: multipart/mixed; boundary="x"\n\n--x\n\nqapla',
    "empty plain, full html": b'Content-Type: multipart/alternative; boundary="x"\n\n--x\n\n \n'
    b"--x\nContent-Type: text/html\n\n<p>qapla</p>\n--x--",
    "text around a picture": b'Content-Type: multipart/mixed; boundary="x"\n\n--x\n\nfirst\n--x\n'
    b"Content-Type: image/png\n\n--x\n\nqapla\n--x--",
    "a message inside": b'Content-Type: multipart/mixed; boundary="x"\n\n--x\n\nqapla\n--x\n'
    b"Content-Type: message/rfc822\n\nSubject: inner\n\ninside\n--x--",
    "bad header": b'To: "unclosed <a@b\nDate: never\nContent-Disposition: ;;;=\nX: =?utf-8?q?=ff?=\n\nqapla',
    "bad address": b"Cc: @@,,<>\nReply-To: a@[\nContent-Type: ;\n\nqapla",
    "a time that no clock shows": b"Date: Fri, 01 Mar 2024 09:00:99999999999999999999 +0000\n\nqapla",
    "comments without an end": b"Cc: " + b"(" * 3_000 + b"\n\nqapla",
    "raw bytes in headers": b"Cc: \xff\xfe <a@example.org>\n\nqapla",
}


@pytest.mark.parametrize("case", ODD)
def test_odd_mail(case: str) -> None:
    (part,) = extract(b"From: x@example.org\nSubject: odd\nMIME-Version: 1.0\n" + ODD[case])
    assert part.text.startswith("# odd\n\n- From: x@example.org")
    assert "qapl" in part.text


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("The house is on the hill, and it is not far from the river that you can see from here in the morning.", "en"),
        ("Das Haus steht auf dem Hügel, und es ist nicht weit von dem Fluss, den man von hier am Morgen sieht.", "de"),
        ("Дом стоит на холме, и это не далеко от реки, которую можно увидеть отсюда, если смотреть на восток утром, "
         "но только когда он не в тумане и все ещё спят", "ru"),
        ("Word", "und"),
        ("x y z 1 2 3 foo bar baz qux " * 20, "und"),
        ("", "und"),
    ],
)  # fmt: skip
def test_language(text: str, language: str) -> None:
    assert language_of(text) == language


def test_a_summary_counts_and_refuses_what_has_no_text() -> None:
    def part(key: int, text: str, *, scanned: bool = False) -> Part:
        return Part(key, f"page={key}", "", text, len(text.split()), scanned=scanned)

    summary = summarise([part(1, "one two"), part(2, "", scanned=True)], "T", "fr")
    assert (summary.words, summary.pages, summary.scanned, summary.language, summary.title) == (
        2,
        2,
        1,
        "fr",
        "T",
    )
    with pytest.raises(Permanent) as pictures:
        summarise([part(1, "", scanned=True)])
    with pytest.raises(Permanent) as nothing:
        summarise([part(1, "- -- | ---")])
    assert (pictures.value.code, nothing.value.code) == ("ocr_needed", "document_empty")


def test_markdown_is_kept() -> None:
    blocks = [
        f"## Part {number}\n\n{made.prose(40, number)}\n\n- *a*\n    - `b`\n\n1. [c](https://e.org/)\n\n"
        f"| h |\n|---|\n| {number} |\n\n```sh\n# no heading\n```\n\n> quoted\\_text"
        for number in range(1, 8)
    ]
    source = "# Title\n\n" + "\n\n".join(blocks) + "\n"
    parts = list(extract(source.encode(), name="parts.md"))
    assert "\n".join(part.text for part in parts).split() == source.split()
    assert [part.title for part in parts] == ["Title", *(f"Part {number}" for number in range(1, 8))]


def test_a_filled_form_and_letters_beyond_the_first_plane() -> None:
    unicode = (
        b"/CIDInit /ProcSet findresource begin begincmap 1 begincodespacerange <00> <FF> endcodespacerange "
        b"2 beginbfchar <41> <D83DDE00> <42> <D835DC65> endbfchar endcmap end"
    )
    form = pdf([
        b"<< /Type /Catalog /Pages 2 0 R /AcroForm << /Fields [7 0 R] >> >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Annots [7 0 R] "
        b"/Resources << /Font << /F1 5 0 R >> >> >>",
        stream(b"BT /F1 24 Tf 100 700 Td (xABy) Tj ET"),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /ToUnicode 6 0 R >>",
        stream(unicode),
        b"<< /Type /Annot /Subtype /Widget /FT /Tx /T (name) /V (filled in) /Rect [9 500 300 520] "
        b"/AP << /N 8 0 R >> /F 4 >>",
        stream(
            b"/Tx BMC BT /F2 12 Tf 2 5 Td (filled in) Tj ET EMC",
            b"/Type /XObject /Subtype /Form /BBox [0 0 200 20] /Resources << /Font << /F2 9 0 R >> >>",
        ),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ])  # fmt: skip
    (part,) = extract(form)
    assert part.text == "x\U0001f600\U0001d465y\nfilled in"


def test_marks_of_a_docx_do_not_cut_words_apart() -> None:
    runs = [
        ("201", "b"), ("7", "b"), (" and ", ""), ("I", "b"), ("nfluenza is ", ""), ("bold", "b"), (" ", ""),
        ("too", "b"), (".", ""),
    ]  # fmt: skip
    (part,) = extract(made.docx(made.paragraph("".join(made.run(*one) for one in runs))))
    assert part.text == "**2017** and Influenza is **bold too**."


def western(content: bytes) -> bytes:
    return page_pdf(stream(content)).replace(b"/Helvetica >>", b"/Helvetica /Encoding /WinAnsiEncoding >>")


def test_accents_that_are_drawn_above_their_letters_are_letters() -> None:
    drawn = rb"BT /F1 10 Tf 100 700 Td (Das ist n) Tj 39.46 0 Td (\250) Tj -1.12 0 Td (amlich so.) Tj ET"
    (part,) = extract(western(drawn))
    assert part.text.strip() == "Das ist nämlich so."


def test_a_sign_that_stands_alone_stays_a_sign() -> None:
    (part,) = extract(western(rb"BT /F1 10 Tf 100 700 Td (Use the \250 sign and `quotes`.) Tj ET"))
    assert part.text.strip() == "Use the ¨ sign and `quotes`."


@pytest.mark.parametrize("packed_names", [False, True])
def test_ligatures_that_a_font_names_by_their_letters(packed_names: bool) -> None:
    font = (
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Libertine /FirstChar 27 /LastChar 122 "
        b"/Encoding << /Type /Encoding /Differences [27 /f_i /f_f_i /T_h] >> >>"
    )
    content = page_pdf(stream(rb"BT /F1 10 Tf 100 700 Td (a de\033nition in the o\034ce) Tj ET")).replace(
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>", font
    )
    with pikepdf.open(io.BytesIO(content)) as opened:
        out = io.BytesIO()
        modes = pikepdf.ObjectStreamMode
        opened.save(out, object_stream_mode=modes.generate if packed_names else modes.disable)
    (part,) = extract(out.getvalue())
    assert part.text.strip() == "a definition in the office"


def test_a_plain_text_that_says_nothing_yields_to_the_page() -> None:
    mail = email.message.EmailMessage()
    mail["From"], mail["Subject"] = "a@example.org", "News"
    mail.set_content("Your program cannot show this message.")
    mail.add_alternative(f"<p>{made.prose(80)}</p>", subtype="html")
    (part,) = extract(mail.as_bytes())
    assert made.prose(80) in part.text
    assert "cannot show" not in part.text

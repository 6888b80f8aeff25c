"""A message is decoded as its reader would see it, however it was encoded, or refused with a code."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from email.message import EmailMessage

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import Permanent
from perdure.pipelines.mail.archive import open_archive
from perdure.pipelines.mail.headers import Address, addresses, date_of, decode_words, message_ids, references
from perdure.pipelines.mail.message import Message, decode, safe_name
from perdure.pipelines.mail.quotes import own_text, unflow
from tests.pipelines.extract.hostile import nested_mail
from tests.pipelines.mail.corpus import corpus

HEAD = b"From: a@x.example\nSubject: s\nMIME-Version: 1.0\n"


def whole() -> EmailMessage:
    made = EmailMessage()
    made["From"] = "Zoë <zoe@x.example>"
    made["To"] = '"Doe, Jane" <jane@x.example>, bob@x.example'
    made["Cc"] = "Team: c@x.example;"
    made["Subject"] = "Grüße aus 東京 " + "and on " * 20
    made["Date"] = "Mon, 16 Nov 2026 05:00:00 +0200"
    made["Message-ID"] = "<one@x.example>"
    made["In-Reply-To"] = "<zero@x.example>"
    made["References"] = "<root@x.example> <zero@x.example> <root@x.example> <one@x.example>"
    made["List-Id"] = "A list <list.x.example>"
    made.set_content("Plain täxt.\n")
    made.add_alternative("<p>HTML täxt.</p>", subtype="html")
    made.add_attachment(b"12345", maintype="application", subtype="pdf", filename="Rechnung für März.pdf")
    return made


def test_everything_a_message_has() -> None:
    found = decode(whole().as_bytes())

    assert found.subject == ("Grüße aus 東京 " + "and on " * 20).strip()
    assert found.sender == (Address("Zoë", "zoe@x.example"),)
    assert found.to == (Address("Doe, Jane", "jane@x.example"), Address("", "bob@x.example"))
    assert found.cc == (Address("", "c@x.example"),)
    assert (found.date, found.date_raw) == (
        datetime(2026, 11, 16, 3, tzinfo=UTC),
        "Mon, 16 Nov 2026 05:00:00 +0200",
    )
    assert (found.message_id, found.in_reply_to) == ("one@x.example", "zero@x.example")
    assert found.references == ("root@x.example", "zero@x.example")
    assert (found.list_id, found.text, found.own) == ("A list <list.x.example>", "Plain täxt.", "Plain täxt.")
    (file,) = found.attachments
    assert (file.name, file.media_type, file.size, file.data, file.inline) == (
        "Rechnung für März.pdf",
        "application/pdf",
        5,
        b"12345",
        False,
    )
    assert found.problems == ()


def test_every_message_of_the_corpus() -> None:
    made = corpus(400)
    with open_archive(made.mbox) as archive:
        found = [decode(entry.data) for entry in archive]

    for letter, message in zip(made.letters, found, strict=True):
        assert message.subject == letter.subject
        assert message.sender[0].address == letter.sender
        assert message.references == letter.references
        assert letter.marker in message.own
        assert "\n-- \n" not in message.own
        assert not any(line.startswith(">") for line in message.own.split("\n"))
        assert "wrote:" not in message.own
        assert message.date == (None if letter.broken == "bad date" else letter.date.replace(microsecond=0))
        if letter.attachment and letter.broken == "":
            assert [one.data for one in message.attachments] == [letter.attachment]
        assert message.problems == (("truncated",) if letter.broken == "never closed" else ())
    assert sum(bool(message.attachments) for message in found) > 20


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("=?utf-8?q?Gr=C3=BC=C3=9Fe?=", "Grüße"),
        ("=?utf-8?Q?Gr=C3?= =?utf-8?Q?=BC=C3=9Fe?=", "Grüße"),
        ("=?utf-8?b?R3LDvMOfZQ?= plain =?iso-8859-1*de?q?Caf=E9_x?=", "Grüße plain Café x"),
        ("Re:=?UTF-8?B?4pyT?=\n =?UTF-8?B?4pyT?= end", "Re:✓✓ end"),
        ("=?iso-2022-jp?B?GyRCJDMkcyRLJEEkTxsoQg==?=", "こんにちは"),
        ("=?klingon?q?qapla?=", "qapla"),
        ("=?utf-8?q?caf=E9?=", "café"),
        ("=?utf-8?q?with spaces inside?=", "with spaces inside"),
        ("=?utf-8?b?!!!?= x", "x"),
        ("=?broken", "=?broken"),
        ("caf\udcc3\udca9", "café"),
        ("a\x00b\tc\r\n d", "ab c d"),
    ],
)
def test_encoded_words(written: str, text: str) -> None:
    assert decode_words(written) == text


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("a@b (Joe B)", [("Joe B", "a@b")]),
        ("undisclosed-recipients:;", []),
        ("Team: a@b, c <d@e>;", [("", "a@b"), ("c", "d@e")]),
        ("=?utf-8?q?M=C3=BCller=2C_A?= <m@x>", [("Müller, A", "m@x")]),
        ('"unclosed <a@b', [("unclosed", "a@b")]),
        ("b@x;c@y", [("", "b@x"), ("", "c@y")]),
        ("root (Cron Daemon)", [("Cron Daemon", "root")]),
        ("@@,,<>", []),
        ("a@b, A@B, a@b", [("", "a@b")]),
        ("", []),
    ],
)
def test_addresses(written: str, found: list[tuple[str, str]]) -> None:
    assert [(one.name, one.address) for one in addresses([written])] == found


@pytest.mark.parametrize(
    "written", ["never", "", "Mon, 99 Nov 2026 03:00:00 +0000", "1 Jan 1066 00:00:00", "\x00"]
)
def test_what_is_no_date_is_kept_as_it_was_written(written: str) -> None:
    found = decode(HEAD + f"Date: {written}\n\nx".encode())

    assert (found.date, found.date_raw) == (None, written.strip("\x00"))


def test_dates_without_a_zone_are_utc() -> None:
    assert (
        date_of("16 Nov 2026 03:00:00 -0000")
        == date_of("16 Nov 2026 03:00")
        == date_of("15 Nov 26 22:00 EST")
    )


def test_ids() -> None:
    assert message_ids("<a@b> junk <c\n d@e> <a@b> <>") == ["a@b", "cd@e"]
    assert message_ids("a@b, c@d") == ["a@b", "c@d"]
    assert message_ids("Your message of Monday") == []
    many = references(" ".join(f"<{n}@x>" for n in range(500)), "499@x")
    assert (len(many), many[0], many[-1]) == (100, "0@x", "498@x")


def body(kind: bytes, content: bytes, encoding: bytes = b"8bit") -> Message:
    return decode(
        HEAD + b"Content-Type: " + kind + b"\nContent-Transfer-Encoding: " + encoding + b"\n\n" + content
    )


@pytest.mark.parametrize(
    ("kind", "content", "encoding", "text"),
    [
        (b"text/plain; charset=us-ascii", "Grüße".encode(), b"8bit", "Grüße"),
        (b"text/plain; charset=iso-8859-1", "“Grüße” €".encode("cp1252"), b"8bit", "“Grüße” €"),
        (b"text/plain; charset=utf-8", "Grüße".encode("cp1252"), b"8bit", "Grüße"),
        (b"text/plain; charset=iso-2022-jp", "日本".encode("iso2022_jp"), b"7bit", "日本"),
        (b"text/plain; charset=utf-8", b"Gr=C3=BC=C3=9Fe =\nx=ZZ=", b"quoted-printable", "Grüße x=ZZ"),
        (b"text/plain", base64.b64encode(b"eight letters")[:-1] + b"*!", b"base64", "eight letters"),
        (b"text/plain", base64.b64encode(b"nine more letters")[:-3], b"base64", "nine more lette"),
        (b"text/html", b"<p>One<script>x</script><blockquote>two</blockquote>", b"8bit", "One\n\n> two"),
        (b"text/plain; format=flowed", b"flows \non\n\n> a \n> b\n", b"8bit", "flows on\n\n> a b"),
        (b"text/plain; format=flowed; delsp=yes", "流 \nれ".encode(), b"8bit", "流れ"),
        (b"multipart/mixed", b"no boundary", b"8bit", "no boundary"),
        (b"text/plain", b"a\x00b\r\nc", b"8bit", "ab\nc"),
        (b";;;=", b"odd type", b"never heard of", "odd type"),
    ],
)
def test_texts(kind: bytes, content: bytes, encoding: bytes, text: str) -> None:
    assert body(kind, content, encoding).text == text


def test_attachments_of_every_sort() -> None:
    found = body(
        b'multipart/mixed; boundary="x"',
        b"--x\n\nbody\n--x\nContent-Type: message/rfc822\n\nSubject: in/ner\n\ninside\n"
        b'--x\nContent-Type: application/ms-tnef; name="winmail.dat"\nContent-Transfer-Encoding: base64\n\nAAAA\n'
        b"--x\nContent-Type: image/png\nContent-ID: <p@x>\n\npicture\n"
        b'--x\nContent-Type: text/plain; name="../../etc/passwd"\n\nnot body\n'
        b"--x\nContent-Type: application/pdf\nContent-Disposition: attachment\n\n\n--x--\n",
    )
    assert found.text == "body"
    assert [(one.name, one.media_type, one.inline) for one in found.attachments] == [
        ("in_ner.eml", "message/rfc822", False),
        ("winmail.dat", "application/ms-tnef", False),
        ("attachment-3.png", "image/png", True),
        ("passwd", "text/plain", False),
        ("attachment-5.pdf", "application/pdf", False),
    ]
    assert found.attachments[0].data == b"Subject: in/ner\n\ninside"
    assert found.attachments[2].content_id == "p@x"


def test_an_attachment_beyond_the_limit_is_told_without_its_content() -> None:
    (file,) = decode(whole().as_bytes(), attachment_bytes_max=4).attachments
    assert (file.size, file.data) == (5, None)


def test_the_kind_of_an_attachment_can_be_stored() -> None:
    (file,) = decode(b"Subject: x\nContent-Type: appl\x00cation/\xff; name=a\n\nx").attachments
    assert "\x00" not in file.media_type
    file.media_type.encode()


def test_an_attached_message_comes_out_as_it_went_in() -> None:
    raw = whole().as_bytes().rstrip()
    parts = b"--out\n\nsee there\n--out\nContent-Type: message/rfc822\n\n" + raw + b"\n--out--\n"
    (inner,) = body(b"multipart/mixed; boundary=out", parts).attachments

    assert inner.data is not None
    assert inner.data.rstrip() == raw
    assert inner.name == decode(raw).subject[: len(inner.name) - 4] + ".eml"


@pytest.mark.parametrize(
    "hostile",
    [
        b"Content-Type: text/plain" + b';"' * 500_000,
        b"Content-Disposition: attachment; filename*0=a" + b"; filename*1=b" * 50_000,
        b'Cc: "' + b'\\"' * 500_000,
        b"Cc: " + b"(" * 500_000,
        b"References: " + b"<a " * 500_000,
        b"Content-Type: text/plain; format=flowed\n\n" + b"flows \n" * 500_000,
        b"\n" + (b"a@" * 200 + b"\n> x\n") * 10_000,
    ],
)
@pytest.mark.timeout(30)  # each takes a second; by the square of its length it would take minutes
def test_length_is_no_weapon(hostile: bytes) -> None:
    assert decode(HEAD + hostile + b"\n\ntext").subject == "s"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "...",
        "/",
        "a/b\\c.txt",
        "x" * 400 + ".pdf",
        "\u202egpj.exe",
        "日本" * 100 + ".txt",
        "a\x00\nb",
        "a:b",
    ],
)
def test_names_are_names_of_files(name: str) -> None:
    safe = safe_name(name, "application/pdf", 1)

    assert 0 < len(safe.encode()) <= 200
    assert not set(safe) & set('/\\\0\n<>:"|?*\u202e')
    assert not safe.startswith(".")
    if name.endswith((".pdf", ".txt", ".exe")):
        assert safe[-4:] == name[-4:]


FLOWED = "This is \na paragraph.\n\n> quoted \n> text\n>> deep\n stuffed\n-- \nname"


def test_flowed_lines() -> None:
    assert unflow(FLOWED) == "This is a paragraph.\n\n> quoted text\n>> deep\nstuffed\n-- \nname"


@pytest.mark.parametrize(
    ("text", "own"),
    [
        (
            "Yes.\n\nOn Mon, Jan 1, 2024 at 10:00 AM Joe Doe <\njoe@x.example> wrote:\n\n> What?\n\nSo.",
            "Yes.\n\nSo.",
        ),
        ("Am 1.1.2024 um 10:00 schrieb Joe:\n> Wie?\nSo.", "So."),
        ("Joe wrote:\n> one\nfirst\n> two\nsecond", "first\nsecond"),
        ("I agree:\n> what you said", "I agree:"),
        ("Top.\n\nFrom: Joe\nSent: Monday\nTo: Jane\nSubject: x\n\nold", "Top."),
        ("Top.\n\nVon: Joe\nGesendet: Montag\nAn: Jane\n\nalt", "Top."),
        ("Top.\n-----Original Message-----\nold", "Top."),
        ("Hi\n-- \nname\nphone", "Hi"),
        ("Hi\n" + "_" * 47 + "\nA mailing list", "Hi"),
        ("-- one dash\n--more", "-- one dash\n--more"),
        ("> only quoted", ""),
        ("From: a line that looks so\nbut is text", "From: a line that looks so\nbut is text"),
    ],
)
def test_own_text(text: str, own: str) -> None:
    assert own_text(text) == own


@pytest.mark.parametrize(
    ("code", "data"),
    [
        ("document_corrupt", b""),
        ("document_corrupt", b"\n\nonly a body"),
        ("document_corrupt", b"\x00\x01\x02\xff" * 100),
        ("document_bomb", nested_mail()),
        ("document_bomb", nested_mail(60)),
        (
            "document_bomb",
            HEAD + b"Content-Type: multipart/mixed; boundary=x\n\n" + b"--x\n\na\n" * 1_100 + b"--x--\n",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_reason(code: str, data: bytes) -> None:
    with pytest.raises(Permanent) as refused:
        decode(data)
    assert refused.value.code == code


PIECES = st.sampled_from(
    [
        b"Subject: ", b"=?utf-8?b?", b"?=", b"\n", b"\r\n", b"\n\n", b"--x\n", b"--x--", b"--", b"A=", b"1" * 30,
        b"Content-Type: multipart/mixed; boundary=x\n", b"Content-Type: message/rfc822\n\n", b"''%ff", b"filename*0*=",
        b"Content-Type: text/html; charset=", b"utf-16", b"idna", b"punycode", b"Content-Transfer-Encoding: base64\n",
        b"Content-Transfer-Encoding: uuencode\n", b"begin 644 x\n", b"Content-Disposition: attachment; filename*=",
        b"Date: ", b"From: ", b"References: <", b">", b"<", b"@", b'"', b"(", b"\x00", b"\xff", b"> ",
        b"Content-Type: message/delivery-status\n\n", b"Content-Type: message/external-body\n\n",
    ]
)  # fmt: skip


@settings(max_examples=300)
@given(st.lists(PIECES | st.binary(max_size=8), max_size=30).map(b"".join))
def test_whatever_comes_is_a_message_or_refused(data: bytes) -> None:
    for one in (data, HEAD + data):
        try:
            found = decode(one)
        except Permanent as refused:
            code = refused.code
        else:
            code = ""
            f"{found.text}{found.own}{found.subject}{found.list_id}".encode()
            assert "\x00" not in found.text
        assert code in {"", "document_corrupt", "document_bomb"}

"""Bytes become the text that was meant, and never raise."""

from __future__ import annotations

import codecs

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.calls.charset import CODECS, codec, decode

GREEK, GERMAN, RUSSIAN, JAPANESE = "καλημέρα κόσμε", "schöne Grüße – für 5 €", "Привет, мир", "こんにちは世界"


@pytest.mark.parametrize(
    ("content", "declared", "text", "charset"),
    [
        (GERMAN.encode(), None, GERMAN, "utf-8"),
        (GERMAN.encode(), "utf-8", GERMAN, "utf-8"),
        (GERMAN.encode("cp1252"), None, GERMAN, "cp1252"),
        (GERMAN.encode("cp1252"), "ISO-8859-1", GERMAN, "cp1252"),
        (GREEK.encode("iso8859-7"), "iso-8859-7", GREEK, "iso8859-7"),
        (RUSSIAN.encode("koi8-r"), "'KOI8-R'", RUSSIAN, "koi8-r"),
        (JAPANESE.encode("cp932"), "x-sjis", JAPANESE, "cp932"),
        (JAPANESE.encode("euc_jp"), "EUC-JP", JAPANESE, "euc_jp"),
        ("汉字".encode("gbk"), "gb2312", "汉字", "gb18030"),
        # a mark counts more than what was declared
        (codecs.BOM_UTF8 + GREEK.encode(), "iso-8859-1", GREEK, "utf-8"),
        (codecs.BOM_UTF16_LE + GREEK.encode("utf-16-le"), "utf-8", GREEK, "utf-16-le"),
        (codecs.BOM_UTF16_BE + GREEK.encode("utf-16-be"), None, GREEK, "utf-16-be"),
        # what was declared counts more than what the page says
        (f'<meta charset="utf-8">{GERMAN}'.encode("cp1252"), "latin1", f'<meta charset="utf-8">{GERMAN}', "cp1252"),
        # the page itself
        (f"<META Charset=koi8-r>{RUSSIAN}".encode("koi8-r"), None, f"<META Charset=koi8-r>{RUSSIAN}", "koi8-r"),
        (
            f'<meta http-equiv="Content-Type" content="text/html; charset=windows-1251">{RUSSIAN}'.encode("cp1251"), "",
            f'<meta http-equiv="Content-Type" content="text/html; charset=windows-1251">{RUSSIAN}', "cp1251",
        ),
        (
            f'<?xml version="1.0" encoding="ISO-8859-5"?><a>{RUSSIAN}</a>'.encode("iso8859-5"), "nonsense",
            f'<?xml version="1.0" encoding="ISO-8859-5"?><a>{RUSSIAN}</a>', "iso8859-5",
        ),
        (f"<!-- <meta charset=koi8-r> --><meta charset=utf-16>{GREEK}".encode(), None,
         f"<!-- <meta charset=koi8-r> --><meta charset=utf-16>{GREEK}", "utf-8"),
        # declared wrongly, and another one fits
        (GREEK.encode(), "ascii-nonsense", GREEK, "utf-8"),
        (RUSSIAN.encode(), "utf-7", RUSSIAN, "utf-8"),
        (GERMAN.encode(), "shift_jis", GERMAN, "utf-8"),
        ("plain words, no mark".encode("utf-16-le"), None, "plain words, no mark", "utf-16-le"),
        ("plain words, no mark".encode("utf-16-be"), None, "plain words, no mark", "utf-16-be"),
        (b"", None, "", "utf-8"),
        (b"+ADw-script+AD4-", "utf-7", "+ADw-script+AD4-", "utf-8"),
    ],
)  # fmt: skip
def test_the_text_is_what_was_meant(content: bytes, declared: str | None, text: str, charset: str) -> None:
    found = decode(content, declared)
    assert (found.text, found.charset, found.replaced) == (text, charset, False)


def test_what_cannot_be_read_is_marked_and_told() -> None:
    assert decode(b"a\xffb", "utf-8").text == "a\ufffdb"
    assert decode(b"a\xffb", "utf-8").replaced
    assert decode(b"a\0b").text == "a\ufffdb"
    assert decode(b"a\0b").replaced
    assert decode(b"a\xed\xa0\x80b", "utf-8").replaced  # half a surrogate pair
    assert decode(codecs.BOM_UTF16_LE + b"\x00\xd8a\x00").text == "\ufffda"


def test_a_few_broken_bytes_do_not_turn_utf_8_into_something_else() -> None:
    found = decode((GREEK * 9).encode() + b"\xff")
    assert (found.text, found.charset, found.replaced) == (GREEK * 9 + "\ufffd", "utf-8", True)


@settings(deadline=None)
@given(st.binary(max_size=200), st.none() | st.sampled_from(sorted(CODECS)) | st.text(max_size=20))
def test_any_bytes_become_clean_text(content: bytes, declared: str | None) -> None:
    found = decode(content, declared)
    assert "\0" not in found.text
    assert found.text.encode("utf-8").decode("utf-8") == found.text
    assert found.charset in CODECS.values()


@pytest.mark.parametrize(
    "label", ["", "hex", "rot13", "zlib", "idna", "punycode", "unicode_escape", "utf-7", "a\0b", "x" * 999]
)
def test_codecs_that_are_no_charset_of_the_web_are_not_known(label: str) -> None:
    assert codec(label) is None

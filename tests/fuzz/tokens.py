"""What readers of files look for, and what they stumble over."""

from __future__ import annotations

import struct

NUMBERS = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF]
DIGITS = [
    b"0",
    b"-1",
    b"65536",
    b"2147483647",
    b"4294967296",
    b"99999999999999999999",
    b"1e999",
    b"0.0000001",
]
COMMON = [
    b"\x00",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"\r",
    b"\n\n",
    b"%n%s",
    b"../../../etc/passwd",
]
MARKUP = [
    b"<", b"]]>", b"<!--", b"&#0;", b"&#xD800;", b"&a;", b"<?x ?>", b"xmlns=''", b"<![CDATA[",
    b"<table><tr><td colspan=99999999>",
    b'<!DOCTYPE a [<!ENTITY a "&b;&b;"><!ENTITY b "&a;&a;">]>', b"<w:p>", b"<w:tbl><w:tr><w:tc>",
    b'<w:gridSpan w:val="99999999"/>',
    b'<w:ilvl w:val="-5"/>', b"<w:txbxContent>", b"<script>", b"<plaintext>", b"<meta charset=utf-7>",
    b"<base href='x'>",
]  # fmt: skip
PDF = [
    b"obj", b"endobj", b"stream\n", b"endstream", b"/Kids [2 0 R]", b"/Count 99999999", b"/Length 999999999",
    b"/Prev 0",
    b"/Filter [/FlateDecode /ASCIIHexDecode /LZWDecode]", b"/Parent 3 0 R", b"xref\n0 99999999\n",
    b"/W [8 8 8]", b"/First -1",
    b"/Type /ObjStm", b"/Encrypt 4 0 R", b"<< " * 600, b"[" * 2000, b"startxref\n0\n%%EOF",
    b"/Predictor 15 /Columns 1000000000",
]  # fmt: skip
MAIL = [
    b"\nFrom x Fri Mar  1 09:00:00 2024\n", b"Content-Type: multipart/mixed; boundary=q\n", b"--q\n",
    b"--q--\n", b"charset=utf-7",
    b"charset=rot13", b"charset=zlib", b"=?utf-8?b?////?=", b"=?x?q?=", b"Content-Transfer-Encoding: base64\n",
    b"Content-Type: message/rfc822\n\n", b"References: " + b"<a@b> " * 3000 + b"\n",
    b"Date: Fri, 99 Foo 99999 99:99:99 +9999\n",
    b"Content-Length: 99999999999\n", b"To: " + b"(" * 3000 + b"\n", b"From: " + b'"' * 999 + b"\n",
]  # fmt: skip
TOKENS = {
    "pdf": PDF, "docx": MARKUP, "epub": MARKUP, "html": MARKUP, "text": MARKUP, "eml": MAIL + MARKUP, "mbox": MAIL,
    "png": [b"IHDR", b"IDAT", b"IEND", b"PLTE", b"iCCP", b"eXIf", b"acTL", b"fcTL", b"zTXt"],
    "jpeg": [b"\xff\xd8", b"\xff\xd9", b"\xff\xda", b"\xff\xc4", b"\xff\xdb", b"\xff\xe1Exif\x00\x00",
    b"\xff\xdd", b"ICC_PROFILE\x00"],
    "webp": [b"RIFF", b"VP8 ", b"VP8L", b"VP8X", b"ANIM", b"ANMF", b"ALPH", b"EXIF"],
    "gif": [b"\x2c", b"\x21\xf9", b"\x21\xff", b"NETSCAPE2.0", b"\x3b"],
    "tiff": [b"II*\x00", b"MM\x00*", b"II+\x00", struct.pack("<HHII", 0x111, 4, 0xFFFF_FFFF, 8)],
    "other image": [b"ftyp", b"meta", b"iloc", b"iprp", b"\xff\x4f\xff\x51", b"P6 99999 99999 255\n"],
}  # fmt: skip
#: What opens a structure that may hold itself, and what closes it.
NESTED = [
    (b"<div>", b"</div>"), (b"<w:sdt>", b"</w:sdt>"), (b"[", b"]"), (b"<<", b">>"), (b"(", b")"), (b"<ul><li>", b""),
    (b"<table><tr><td>", b""), (b"> ", b""), (b"<b><i>", b"</b>"), (b"*_", b"_*"), (b"q ", b"Q "), (b"- ", b""),
]  # fmt: skip

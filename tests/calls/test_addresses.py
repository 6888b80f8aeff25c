"""No form of a private or special address gets through, and what is public does."""

from __future__ import annotations

import asyncio
import logging
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perdure.calls import addresses
from perdure.calls.addresses import allowed, check_url, checked, follow, parse
from perdure.calls.fetch import fetch
from perdure.errors import Permanent
from tests.calls.web import Web

FORBIDDEN = """
    127.0.0.1 127.0.0.1. 127.1 127.0.1 127.255.255.254 2130706433 0x7f000001 0x7f.1 0x7f.0x0.0x0.0x1 0X7F.1
    017700000001 0177.0.0.1 0177.0.0.01 127.0.0.01 00127.0.0.1 127.000.000.001 0 0. 0x 0x0 0.0.0.0 00000000
    4294967295 4294967296 256.256.256.256 1.2.3.4.5 127.0.0.0x1
    ①②⑦.⓪.⓪.① １２７.０.０.１ 127。0。0。1 127．0．0．1 127｡0｡0｡1 ２１３０７０６４３３ 0ｘ7f.1 𝟏𝟐𝟕.𝟎.𝟎.𝟏
    localhost LOCALHOST localhost. a.localhost a.b.localhost localhost.localdomain ip6-localhost ip6-loopback
    ＬＯＣＡＬＨＯＳＴ ⓛocalhost loc\u00adalhost
    10.0.0.1 10.255.255.1 172.16.0.1 172.31.255.255 192.168.0.1 100.64.0.1 100.100.100.200 100.127.255.255
    169.254.169.254 169.254.0.1 2852039166 0xa9fea9fe 168.63.129.16 192.0.0.1 192.0.0.192 192.0.2.1 198.51.100.1
    203.0.113.1 192.88.99.1 198.18.0.1 198.19.255.255 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255 0.1.2.3
    [::1] [0:0:0:0:0:0:0:1] [::0001] [::] [::ffff:127.0.0.1] [::ffff:7f00:1] [::FFFF:7F00:0001] [::ffff:10.0.0.1]
    [::ffff:169.254.169.254] [::127.0.0.1] [::7f00:1] [::8.8.8.8] [2002:7f00:1::] [2002:0808:0808::1]
    [64:ff9b::7f00:1] [64:ff9b::127.0.0.1] [64:ff9b::a9fe:a9fe] [64:ff9b:1::1] [2001::1] [2001:0:53aa:64c::]
    [2001:10::1] [2001:20::1] [2001:2::1] [fe80::1] [fe80::1%eth0] [fe80::1%25eth0] [2606:4700::1111%1] [fec0::1]
    [fc00::1] [fd00:ec2::254] [ff02::1] [2001:db8::1] [3fff::1] [100::1] [5f00::1] [4000::1]
""".split()

INVALID = [
    "", " ", "http", "http:", "http:/", "http://", "http:///127.0.0.1/", "http:127.0.0.1", "//example.org/",
    "example.org", "/etc/passwd", "http://:80/", "http://?", "http://#", "http://.", "http://..", "http://a..b/",
    "http://.a/", "http://example.org../", "http://-a.org/", "http://a-.org/", "http://a_b.1/", "http://foo.0x1/",
    "http://good@127.0.0.1/", "http://good.org@127.0.0.1/", "http://127.0.0.1@good.org/", "http://a:b@good.org/",
    "http://good.org:80@127.0.0.1/", "http://@127.0.0.1/", "http://good.org:@127.0.0.1/",
    "http://%31%32%37.0.0.1/", "http://127.0.0.1%2f@good.org", "http://good.org%00.evil/", "http://good%2eorg/",
    "http://127.0.0.1%00/", "http://ex％61mple.org/", "http://good.org＠127.0.0.1/", "http://good.org／.evil.org/",
    "http://good.org\\@127.0.0.1/", "http:\\\\127.0.0.1\\", "http:/\\127.0.0.1/", "http://good.org\\.evil.org/",
    "http://127.0.0.1\\.good.org/", "http://good.org\t/", "http://127.0\n.0.1/", "ht\ntp://127.0.0.1/",
    "http://good.org\r\nHost: evil/", "http://good.org/\r\nX: y", "http://good.org/a b", "http://good .org/",
    "http://good.org /", "http://127.0.0.1 .good.org/", "http://good.org\x00/", "http://good.org/\x7f", "http://good.org/\x85",
    "http://\u2028.org/",
    "http://good.org:0/", "http://good.org:65536/", "http://good.org:99999999999/", "http://good.org:-1/",
    "http://good.org:8 0/", "http://good.org:80a/", "http://good.org:+80/", "http://good.org:８０８０/",
    "http://good.org:80:80/", "http://::1/", "http://[::1", "http://::1]/", "http://[::1]x/", "http://[::1]:x/",
    "http://[]/", "http://[127.0.0.1]/", "http://[::1::]/", "http://[v1.a]/", "http://[::ffff:127.1]/", "http://[good.org]/",
    "http://" + "a" * 64 + ".org/", "http://" + "a." * 130 + "org/", "http://good.org/" + "a" * 8_000,
    "http://good.org/\ud800", "http://\ud800.org/", "http://xn--\u0080.org/", "http://a,b.org/", "http://a'b.org/",
    "http://{a}.org/", "http://*.org/", "http://$(id).org/", "http://a|b.org/", "http://<a>/",
]  # fmt: skip

SCHEMES = (
    "file:///etc/passwd FILE:///etc/passwd ftp://good.org/ gopher://127.0.0.1:6379/_x dict://127.0.0.1:11211/ "
    "data:text/plain,a jar:http://127.0.0.1!/ javascript:alert(1) ws://good.org/ unix:/run/x ldap://good.org/ "
    "about:blank view-source:http://a localhost:80 good.org:80/ httpx://good.org/ netdoc:///etc/passwd"
).split()


def code_of(url: object, **options: bool) -> str:
    with pytest.raises(Permanent) as raised:
        check_url(url, **options)  # type: ignore[arg-type]
    return raised.value.code


@pytest.mark.parametrize("host", FORBIDDEN)
def test_every_form_of_a_special_address_is_refused_at_the_door(host: str) -> None:
    for url in (f"http://{host}/", f"https://{host}", f"HTTP://{host}:8080/a?b#c", f"  http://{host}/\n"):
        assert code_of(url) == "address_forbidden"


@pytest.mark.parametrize("url", INVALID)
def test_what_can_be_read_in_two_ways_is_refused(url: str) -> None:
    assert code_of(url) == "url_invalid"
    assert code_of(url, allow_loopback=True) == "url_invalid"


@pytest.mark.parametrize("url", SCHEMES)
def test_only_the_web_is_fetched(url: str) -> None:
    assert code_of(url, allow_loopback=True) == "scheme_forbidden"


@pytest.mark.parametrize("port", [1, 21, 22, 25, 110, 445, 1023])
def test_ports_of_other_services_are_refused(port: int) -> None:
    assert code_of(f"http://good.org:{port}/") == "port_forbidden"


def test_a_url_with_a_password_is_told_why() -> None:
    with pytest.raises(Permanent, match="a user name or password"):
        check_url("https://me:secret@good.org/")


def test_what_is_no_text_is_refused() -> None:
    assert code_of(None) == code_of(b"http://good.org/") == code_of(7) == "url_invalid"


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("HTTP://Good.ORG", "http://good.org/"),
        ("  https://good.org:443/a\n", "https://good.org/a"),
        ("http://good.org.:80?a=1#part", "http://good.org/?a=1"),
        ("http://good.org:/", "http://good.org/"),
        ("http://good.org:8080/#@127.0.0.1", "http://good.org:8080/"),
        ("http://good.org/?u=http://127.0.0.1/@x", "http://good.org/?u=http://127.0.0.1/@x"),
        ("http://good.org/a%2Fb%zz", "http://good.org/a%2Fb%zz"),
        ("http://good.org/ä/日本?q=<ü>", "http://good.org/%C3%A4/%E6%97%A5%E6%9C%AC?q=%3C%C3%BC%3E"),
        ("http://bücher.de/", "http://xn--bcher-kva.de/"),
        ("http://ＧＯＯＤ。org/", "http://good.org/"),
        ("http://a_b.good.org/", "http://a_b.good.org/"),
        ("http://1.1.1.1/", "http://1.1.1.1/"),
        ("http://8.8.8.8.:8080/", "http://8.8.8.8:8080/"),
        ("http://[2606:4700:0:0:0:0:0:1111]/", "http://[2606:4700::1111]/"),
        ("http://[::ffff:8.8.8.8]/", "http://[::ffff:808:808]/"),
        ("http://[64:ff9b::808:808]/", "http://[64:ff9b::808:808]/"),
        ("http://1.good.org/", "http://1.good.org/"),
        ("http://0x7f.good.org/", "http://0x7f.good.org/"),
        ("http://xn--bcher-kva.de/", "http://xn--bcher-kva.de/"),
        ("http://mylocalhost/", "http://mylocalhost/"),
    ],
)
def test_a_good_url_has_one_normal_form(url: str, normal: str) -> None:
    assert check_url(url) == normal
    assert check_url(normal) == normal


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.9.9.9", "localhost", "a.localhost", "[::1]", "[::ffff:127.0.0.1]"]
)
def test_loopback_is_allowed_only_on_demand(host: str) -> None:
    check_url(f"http://{host}:8080/", allow_loopback=True)
    assert code_of(f"http://{host}:8080/") == "address_forbidden"


@pytest.mark.parametrize(
    "host", ["10.0.0.1", "169.254.169.254", "0.0.0.0", "[::]", "2130706433", "[64:ff9b::7f00:1]"]
)
def test_leave_for_loopback_is_leave_for_nothing_else(host: str) -> None:
    assert code_of(f"http://{host}:8080/", allow_loopback=True) == "address_forbidden"


@settings(deadline=None)
@given(st.ip_addresses(v=4) | st.ip_addresses(v=6))
@example(IPv4Address("192.0.0.192"))
@example(IPv6Address("fec0::1"))
def test_whatever_is_allowed_python_calls_global_too(address: IPv4Address | IPv6Address) -> None:
    inside = getattr(address, "ipv4_mapped", None) or address
    if allowed(address):
        assert inside.is_global
        assert not inside.is_multicast
        assert not inside.is_reserved or address in addresses.NAT64


@settings(deadline=None)
@given(
    st.text(max_size=40),
    st.sampled_from(["", "http://", "http://127.0.0.1", "https://good.org/", "http://[::1]"]),
)
def test_any_text_is_read_or_refused(text: str, before: str) -> None:
    try:
        url = parse(before + text)
    except Permanent:  # and nothing else
        return
    assert str(url).isascii()
    assert parse(str(url)) == url
    assert (literal := addresses.literal(url.host)) is None or allowed(literal)


@pytest.mark.parametrize(
    ("location", "leads_to"),
    [
        ("/b", "http://good.org/b"),
        ("b?x=1#y", "http://good.org/a/b?x=1"),
        ("../b", "http://good.org/b"),
        ("//other.org/b", "http://other.org/b"),
        ("https://other.org", "https://other.org/"),
        ("  /with space ", "http://good.org/with%20space"),
        ("/ü", "http://good.org/%C3%BC"),
        ("", "http://good.org/a/page"),
    ],
)
def test_a_redirect_leads_where_browsers_go(location: str, leads_to: str) -> None:
    assert str(follow(parse("http://good.org/a/page"), location)) == leads_to


@pytest.mark.parametrize(
    ("location", "code"),
    [
        ("//127.0.0.1/", "address_forbidden"),
        ("http://[::1]/", "address_forbidden"),
        ("http://2130706433/", "address_forbidden"),
        ("file:///etc/passwd", "scheme_forbidden"),
        ("data:text/plain,a", "scheme_forbidden"),
        ("\\\\127.0.0.1\\", "url_invalid"),
        ("http://[::1", "url_invalid"),
        ("/a\r\nHost: b", "url_invalid"),
        ("//a b/", "url_invalid"),
        ("//good.org:25/", "port_forbidden"),
    ],
)
def test_a_redirect_is_checked_like_any_url(location: str, code: str) -> None:
    with pytest.raises(Permanent) as raised:
        follow(parse("http://good.org/a/page"), location)
    assert raised.value.code == code


@pytest.mark.parametrize("other", ["127.0.0.1", "10.0.0.1", "fe80::1%2", "::ffff:127.0.0.1", "nonsense", ""])
def test_one_forbidden_address_among_many_is_enough(other: str) -> None:
    assert checked("good.org", ["1.1.1.1", "2606:4700::1111", "1.1.1.1"]) == ["1.1.1.1", "2606:4700::1111"]
    with pytest.raises(Permanent, match=r"good\.org leads to"):
        checked("good.org", ["1.1.1.1", "2606:4700::1111", other])


def test_only_the_log_says_which_address_it_is(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        logging.getLogger("perdure"), "propagate", True
    )  # another test may have set up the log
    with pytest.raises(Permanent) as refused:
        checked("intranet.corp", ["10.77.1.9"])
    assert refused.value.code == "address_forbidden"
    assert "10.77" not in str(refused.value)
    assert "10.77.1.9" in caplog.text


# --- and no connection is made ---------------------------------------------------------------


def test_no_form_of_loopback_reaches_a_server_that_listens_there() -> None:
    async def never(host: str, port: int) -> list[str]:
        raise AssertionError(f"{host} was looked up")

    async def try_all(port: int) -> None:
        for host in FORBIDDEN:
            with pytest.raises(Permanent):
                await fetch(f"http://{host}:{port}/", resolve=never)
        for url in INVALID:
            with pytest.raises(Permanent):
                await fetch(url.replace("127.0.0.1/", f"127.0.0.1:{port}/"), resolve=never)

    with Web() as web:
        asyncio.run(try_all(web.port))
        assert web.accepted == 0


@pytest.mark.parametrize(
    "answer",
    [["127.0.0.1"], ["1.1.1.1", "127.0.0.1"], ["127.0.0.1", "1.1.1.1"], ["::1"], ["::ffff:127.0.0.1"], ["0.0.0.0"],
     ["10.0.0.1"], ["169.254.169.254"], ["2606:4700::1111", "::1"]],
)  # fmt: skip
def test_a_name_that_leads_to_a_forbidden_address_is_refused_without_a_connection(answer: list[str]) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return answer

    with Web() as web:
        with pytest.raises(Permanent) as raised:
            asyncio.run(fetch(web.url(host="good.org"), resolve=resolve))
        assert raised.value.code == "address_forbidden"
        assert web.accepted == 0


def test_every_special_address_is_refused_as_an_answer_of_the_resolver() -> None:
    literals = [host.strip("[]") for host in FORBIDDEN if addresses.literal(host.strip("[]"))]
    assert len(literals) > 60
    for text in literals:
        assert not allowed(ip_address(text))

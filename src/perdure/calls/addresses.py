"""Which URLs are fetched and which addresses are connected to: the public web and nothing else.

A URL is read strictly and once, here; nothing that fetches it parses it again, so that nobody else can understand
another host in it. What is written in a way that two programs may read differently is refused, not interpreted.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import quote, urljoin

import idna

from perdure.core.frozen import frozen
from perdure.errors import Permanent

log = logging.getLogger("perdure.fetch")
Address = IPv4Address | IPv6Address

URL_CHARS_MAX = 8_000
HOST_CHARS_MAX = 253
PORT_MAX = 65_535
#: Below this, ports belong to other protocols; a request for a page must not reach a mail server.
PORT_FREE = 1_024
PORTS = {"http": 80, "https": 443}

LOCAL_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"})
LOCAL_ENDING = ".localhost"

LOOPBACK_V4 = IPv4Network("127.0.0.0/8")
LOOPBACK_V6 = IPv6Address("::1")
#: Written out, because `ipaddress.is_global` differs between versions of Python and says yes to some of these.
SPECIAL_V4 = tuple(
    IPv4Network(net)
    for net in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16",  # private
        "100.64.0.0/10",  # behind carriers' address translation
        "169.254.0.0/16",  # link-local, with the metadata services of clouds
        "168.63.129.16/32",  # looks public: Azure's machines reach their host there
        "192.0.0.0/24",  # protocol assignments, with another metadata service
        "192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4
        "198.18.0.0/15",  # benchmarks
        "224.0.0.0/4", "240.0.0.0/4",  # multicast; reserved, with broadcast
    )
)  # fmt: skip
#: Of IPv6 only this is the public internet: all local, private, multicast and compatible forms are outside,
PUBLIC_V6 = IPv6Network("2000::/3")
#: and these inside: protocol assignments with Teredo, documentation, 6to4.
SPECIAL_V6 = tuple(IPv6Network(net) for net in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"))
#: An IPv4 address as machines without IPv4 reach it; what counts is the address inside.
NAT64 = IPv6Network("64:ff9b::/96")

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_UNCLEAN = re.compile(r"[\x00-\x20\x7f-\x9f\\\ud800-\udfff]")
_AUTHORITY_END = re.compile(r"[/?#]")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT = re.compile(r"[0-9]{1,5}")
_TARGET_SAFE = "!$%&'()*+,/:;=?@[]~"


@frozen
class Url:
    """A URL that may be fetched, as far as its text tells. `host` is lower-case ASCII, an address without brackets."""

    scheme: str
    host: str
    port: int
    target: str  # path and query; what follows a # is not sent

    @property
    def authority(self) -> str:
        """Host and port as the Host header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"


def check_url(url: str, *, allow_loopback: bool = False) -> str:
    """The URL in its one normal form; Permanent with the reason's code if it will not be fetched. Asks no network.

    A name may still turn out to lead to a forbidden address; that is found out when it is fetched.
    """
    return str(parse(url, allow_loopback=allow_loopback))


def parse(url: str, *, allow_loopback: bool = False) -> Url:
    """The parts of a URL that may be fetched; Permanent: url_invalid, scheme_, port_ or address_forbidden."""
    text = _clean(url)
    scheme, colon, rest = text.partition(":")
    if not colon or not _SCHEME.fullmatch(scheme):
        raise Permanent("url_invalid", "a URL begins with http:// or https://")
    scheme = scheme.lower()
    if scheme not in PORTS:
        raise Permanent("scheme_forbidden", f"{scheme}: is not fetched, only http and https are")
    if not rest.startswith("//"):
        raise Permanent("url_invalid", f"{scheme}: must be followed by //")
    found = _AUTHORITY_END.search(rest, 2)
    authority, tail = (rest[2:], "") if found is None else (rest[2 : found.start()], rest[found.start() :])
    host, port = _host_and_port(authority, PORTS[scheme])
    _refuse_local(host, allow_loopback)
    target = tail.partition("#")[0]
    if not target.startswith("/"):
        target = f"/{target}"
    return Url(scheme, host, port, quote(target, safe=_TARGET_SAFE))


def follow(url: Url, location: str, *, allow_loopback: bool = False) -> Url:
    """Where a redirect leads, checked like any other URL. Spaces, which many servers send, are understood."""
    text = _clean(location.strip(" \t").replace(" ", "%20"))
    try:
        joined = urljoin(str(url), text)
    except ValueError:
        raise Permanent("url_invalid", "the redirect's address cannot be read") from None
    return parse(joined, allow_loopback=allow_loopback)


def literal(host: str) -> Address | None:
    """The address that a parsed host is, or None if it is a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def allowed(address: Address, *, allow_loopback: bool = False) -> bool:
    """Whether the address is on the public internet (or, where that is allowed, this machine's loopback)."""
    if isinstance(address, IPv4Address):
        if address in LOOPBACK_V4:
            return allow_loopback
        return not any(address in net for net in SPECIAL_V4)
    if address.scope_id is not None:
        return False
    if address.ipv4_mapped is not None:
        return allowed(address.ipv4_mapped, allow_loopback=allow_loopback)
    if address in NAT64:
        return allowed(IPv4Address(int(address) & 0xFFFF_FFFF))
    if address == LOOPBACK_V6:
        return allow_loopback
    return address in PUBLIC_V6 and not any(address in net for net in SPECIAL_V6)


def checked(host: str, addresses: Iterable[str], *, allow_loopback: bool = False) -> list[str]:
    """The addresses of a host, each once; Permanent if a single one is forbidden: which is used would be chance."""
    found: dict[str, None] = {}
    for text in addresses:
        address = literal(text)
        if address is None or not allowed(address, allow_loopback=allow_loopback):
            # the operator may know; an organisation would learn what the network of the server looks like
            log.warning("%s leads to %s: forbidden", host, text)
            raise Permanent(
                "address_forbidden", f"{host} leads to an address that is not on the public internet"
            )
        found[text] = None
    return list(found)


# --- reading ---------------------------------------------------------------------------------


def _clean(url: str) -> str:
    """The URL without the white space around it, which nobody means."""
    if not isinstance(url, str):
        raise Permanent("url_invalid", f"a URL is text, not {type(url).__name__}")
    text = url.strip(" \t\r\n\f")
    if len(text) > URL_CHARS_MAX:
        raise Permanent(
            "url_invalid", f"the URL has {len(text)} characters, at most {URL_CHARS_MAX} are taken"
        )
    if _UNCLEAN.search(text):
        raise Permanent("url_invalid", "the URL contains a space, a control character or a backslash")
    return text


def _host_and_port(authority: str, default: int) -> tuple[str, int]:
    if "@" in authority:
        raise Permanent("url_invalid", "a URL with a user name or password is not taken")
    if authority.startswith("["):
        inside, bracket, after = authority[1:].partition("]")
        if not bracket or (after and not after.startswith(":")):
            raise Permanent("url_invalid", "the brackets of the address do not fit")
        return _bracketed(inside), _port(after.removeprefix(":"), default)
    host, _, port = authority.partition(":")
    return _named(host), _port(port, default)


def _port(text: str, default: int) -> int:
    if not text:
        return default
    if not _PORT.fullmatch(text) or not 0 < int(text) <= PORT_MAX:
        raise Permanent("url_invalid", f"the port is a number from 1 to {PORT_MAX}")
    port = int(text)
    if port < PORT_FREE and port not in PORTS.values():
        raise Permanent("port_forbidden", f"port {port} belongs to another service than the web")
    return port


def _bracketed(text: str) -> str:
    if "%" in text:
        raise Permanent("address_forbidden", "an address with a zone is not on the public internet")
    try:
        return IPv6Address(text).compressed
    except ValueError:
        raise Permanent("url_invalid", "there is no IPv6 address in the brackets") from None


def _named(text: str) -> str:
    """A host that is not in brackets: a name, or an IPv4 address in its usual form."""
    if not text or len(text) > HOST_CHARS_MAX + 1:
        raise Permanent("url_invalid", "the URL has no host, or one that is too long")
    try:
        # What looks like a digit or a dot becomes one: ① is 1 and 。 is a dot, for resolvers too.
        host = text.lower() if text.isascii() else idna.encode(text, uts46=True).decode("ascii")
    except UnicodeError:
        raise Permanent("url_invalid", "the host's name is not a possible one") from None
    host = host.removesuffix(".")
    labels = host.split(".")
    if len(host) > HOST_CHARS_MAX or not all(_LABEL.fullmatch(label) for label in labels):
        raise Permanent("url_invalid", "the host's name is not a possible one")
    if not _NUMBER.fullmatch(labels[-1]):
        return host
    try:
        return str(IPv4Address(host))
    except ValueError:
        pass
    if all(_NUMBER.fullmatch(label) for label in labels):  # 2130706433, 0x7f.1, 0177.0.0.1, 127.1
        raise Permanent(
            "address_forbidden", f"{host} is no usual form of an address: four numbers from 0 to 255"
        )
    raise Permanent("url_invalid", "a host's name does not end in a number")


def _refuse_local(host: str, allow_loopback: bool) -> None:
    address = literal(host)
    if address is None:
        fine = allow_loopback or not (host in LOCAL_NAMES or host.endswith(LOCAL_ENDING))
    else:
        fine = allowed(address, allow_loopback=allow_loopback)
    if not fine:
        here = address is None or address.is_loopback
        hint = (
            "; for trials PERDURE_ALLOW_LOOPBACK=true allows this machine, here and for workers"
            if here
            else ""
        )
        raise Permanent("address_forbidden", f"{host} is not on the public internet{hint}")

"""Which addresses a tool may connect to.

The rules are written out: what `ipaddress.is_global` answers has changed between releases of Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address

# Where clouds hand out credentials. Refused even where an operator allows the origin.
METADATA: frozenset[Address] = frozenset(
    ip_address(each)
    for each in (
        "169.254.169.254",
        "169.254.170.2",
        "169.254.170.23",
        "169.254.0.23",
        "169.254.10.10",
        "100.100.100.200",
        "168.63.129.16",  # Azure's; it is not even private
        "192.0.0.192",
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd20:ce::254",
    )
)
SPECIAL_V4 = tuple(
    IPv4Network(each)
    for each in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
GLOBAL_V6 = IPv6Network("2000::/3")  # all that was ever given out for the public
SPECIAL_V6 = tuple(
    IPv6Network(each) for each in ("2001::/23", "2001:db8::/32", "2620:4f:8000::/48", "3ffe::/16", "3fff::/20")
)
NAT64 = IPv6Network("64:ff9b::/96")
LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")
LOW_32 = 0xFFFF_FFFF


def may_contact(address: Address, *, private: bool = False) -> bool:
    """Whether a connection to this address is allowed; `private`: an operator named the origin."""
    meant = tuple(_meant(address))
    if any(each in METADATA or each.is_multicast or each.is_unspecified for each in meant):
        return False
    return private or all(_is_public(each) for each in meant)


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv4Address):
        return address.is_global and not any(address in each for each in SPECIAL_V4)
    return address.is_global and address in GLOBAL_V6 and not any(address in each for each in SPECIAL_V6)


def _meant(address: Address) -> Iterator[Address]:
    """Every address that a packet to this one may arrive at."""
    if isinstance(address, IPv4Address):
        yield address
    elif address.ipv4_mapped is not None:
        yield address.ipv4_mapped
    elif address in NAT64:
        yield IPv4Address(int(address) & LOW_32)
    else:
        yield IPv6Address(int(address))  # without a zone
        yield from _embedded(address)


def _embedded(address: IPv6Address) -> Iterator[Address]:
    number = int(address)
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo
    if LOW_32 >= number > 1:  # the deprecated ::a.b.c.d
        yield IPv4Address(number)
    if address in LOCAL_NAT64:
        yield from filter(int, _in_local_nat64(number))


def _in_local_nat64(number: int) -> Iterator[IPv4Address]:
    """As for each of the prefix lengths that may be in use; most of these are not meant."""
    yield IPv4Address(number & LOW_32)
    for tail in (16, 24, 32):
        yield _around_the_u_octet(number, tail)


def _around_the_u_octet(number: int, tail: int) -> IPv4Address:
    """RFC 6052: prefixes of 48, 56 and 64 bits skip bits 64 to 71; `tail` bits of the address stand after them."""
    high = (number >> 64) & ((1 << (32 - tail)) - 1)
    low = (number >> (56 - tail)) & ((1 << tail) - 1)
    return IPv4Address((high << tail) | low)

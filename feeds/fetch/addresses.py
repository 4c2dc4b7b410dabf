"""Which network addresses a stranger's feed may lead us to: public ones only."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

_NAT64 = IPv6Network("64:ff9b::/96")


def is_public(address: str) -> bool:
    """Whether an address (IPv4 or IPv6, as text) is one of the public internet's.

    Private, shared, loopback, link-local, multicast, reserved and unspecified ones are not, nor are IPv6 addresses
    that stand for such an IPv4 address (mapped, 6to4, Teredo, NAT64).

    >>> is_public("93.184.215.14"), is_public("127.0.0.1"), is_public("::ffff:10.0.0.1")
    (True, False, False)
    """
    try:
        ip = ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, IPv6Address):
        if ip.ipv4_mapped is not None:
            return _is_plain(ip.ipv4_mapped)
        return _is_plain(ip) and all(_is_plain(inner) for inner in _embedded(ip))
    return _is_plain(ip)


def _is_plain(ip: IPv4Address | IPv6Address) -> bool:
    return ip.is_global and not (
        ip.is_multicast
        or ip.is_private
        or ip.is_loopback
        or ip.is_link_local
        or ip.is_reserved
        or ip.is_unspecified
        or getattr(ip, "is_site_local", False)
    )


def _embedded(ip: IPv6Address) -> list[IPv4Address]:
    """The IPv4 addresses that an IPv6 address leads to."""
    found = [ip.sixtofour, *(ip.teredo or ())]
    if ip in _NAT64:
        found.append(IPv4Address(int(ip) & 0xFFFFFFFF))
    return [inner for inner in found if inner is not None]

"""Which network addresses a stranger's feed may lead to: public ones only.

The tables are IANA's registries of special-purpose addresses as of 2025. What Python's `ipaddress` knows of them
differs from release to release.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_NOT_PUBLIC_4 = [
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared by a carrier's customers
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # the host of a virtual machine in Azure
        "169.254.0.0/16",  # link-local
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4, deprecated
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
]

_UNICAST_6 = IPv6Network("2000::/3")
"""All global unicast addresses that IANA gives out. All others have special meanings."""

_NOT_PUBLIC_6 = [
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments: Teredo, benchmarks, ORCHID
        "2001:db8::/32",  # documentation
        "3fff::/20",  # documentation
    )
]

_SIX_TO_FOUR, _NAT64 = IPv6Network("2002::/16"), IPv6Network("64:ff9b::/96")


def is_public(address: str) -> bool:
    """Whether an address (IPv4 or IPv6, as text) is public.

    Private, shared, loopback, link-local, multicast, reserved and unspecified addresses are not. An IPv6 address that
    stands for an IPv4 address (mapped, 6to4, NAT64) is public if that is.

    >>> is_public("93.184.215.14"), is_public("127.0.0.1"), is_public("::ffff:10.0.0.1")
    (True, False, False)
    """
    try:
        ip = ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, IPv4Address):
        return _is_public_4(ip)
    if ip.scope_id is not None:
        return False
    inner = _inner(ip)
    if inner is not None:
        return _is_public_4(inner)
    return ip in _UNICAST_6 and not any(ip in network for network in _NOT_PUBLIC_6)


def _is_public_4(ip: IPv4Address) -> bool:
    return not any(ip in network for network in _NOT_PUBLIC_4)


def _inner(ip: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address stands for; None if there is none."""
    if ip in _NAT64:
        return IPv4Address(int(ip) & 0xFFFFFFFF)
    if ip in _SIX_TO_FOUR:
        return IPv4Address(int(ip) >> 80 & 0xFFFFFFFF)
    return ip.ipv4_mapped

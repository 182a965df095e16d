"""Where notices may go: http and https, to addresses of the internet unless an operator allowed others (FC-50)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import ClassVar, Final

from pool.domain.errors import PoolError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
_NAT64: Final = IPv6Network("64:ff9b::/96")


class UnsafeUrl(PoolError):
    """The URL, or what its name stands for, is nowhere to send to. `details.reason` is a code."""

    code: ClassVar[str] = "unsafe_url"


@dataclass(frozen=True, slots=True)
class Target:
    scheme: str
    host: str
    port: int
    path: str
    """With the query."""


def check_addresses(addresses: Sequence[str], allowed: Sequence[Network]) -> str:
    """The address to connect to: the first, if every one of the name is allowed. Raises UnsafeUrl.

    All of them, since a name with one good and one bad address is a trap, whichever is tried.
    """
    if not addresses:
        raise unsafe("The host's name stands for no address.", "unresolved")
    for text in addresses:
        if not _is_allowed(ip_address(text.partition("%")[0]), allowed):
            raise unsafe(
                "The host lies in this installation's own or another private network, which notices do not "
                "reach unless SLUICE_WEBHOOK_NETWORKS names it.",
                "private",
            )
    return addresses[0]


def _is_allowed(address: Address, allowed: Sequence[Network]) -> bool:
    inner = _unwrap(address)
    if any(inner.version == network.version and inner in network for network in allowed):
        return True
    return inner.is_global and not inner.is_multicast


def _unwrap(address: Address) -> Address:
    """The IPv4 address inside an IPv6 one that only carries it."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def unsafe(message: str, reason: str) -> UnsafeUrl:
    return UnsafeUrl(message, reason=reason)

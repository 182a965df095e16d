"""Where a client is, as a header says: one that the operator names, or a proxy's country header.

Names that come from outside are bounded in length, characters and number: each is a series of its own later.
"""

import ipaddress
import re
from collections.abc import Iterable, Mapping

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

COUNTRY_HEADERS = (
    b"cf-ipcountry", b"cloudfront-viewer-country", b"fastly-client-country", b"x-appengine-country",
    b"x-vercel-ip-country",
)  # fmt: skip
"""Read from trusted proxies only: what a client sends in them passes through a proxy that knows none of them."""
MOST_REGIONS = 256
OTHER = "other"
"""All regions beyond so many of one process."""
_LONGEST = 63
_STRANGE = re.compile(rb"[^A-Za-z0-9._/-]+")


class Regions:
    """`header`: lower-case; "" = none. `proxies`: whose headers count; without any everybody's does, but no country
    header's."""

    def __init__(self, header: str, proxies: Iterable[Network] = ()) -> None:
        self._proxies = tuple(proxies)
        own = (header.encode("latin-1"),) if header else ()
        self._headers = own + (COUNTRY_HEADERS if self._proxies else ())
        self.headers = frozenset(self._headers)
        self._known: set[str] = set()

    def trusts(self, peer: str) -> bool:
        """`peer`: the address of the connection; what is none is not trusted."""
        if not self._proxies:
            return True
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:
            return False
        return any(address in network for network in self._proxies)

    def read(self, headers: Mapping[bytes, bytes]) -> str:
        """ "" = not told. To be bounded before it is passed on."""
        for name in self._headers:
            value = headers.get(name)
            if value:
                return _STRANGE.sub(b"_", value)[:_LONGEST].decode("ascii").strip("_")
        return ""

    def bound(self, region: str) -> str:
        """The region, or OTHER where there are too many."""
        if region not in self._known:
            if len(self._known) >= MOST_REGIONS:
                return OTHER
            self._known.add(region)
        return region


def read_networks(text: str) -> tuple[Network, ...]:
    """Addresses and networks, joined by commas. Raises ValueError naming the one that is none."""
    return tuple(ipaddress.ip_network(part.strip(), strict=False) for part in text.split(",") if part.strip())

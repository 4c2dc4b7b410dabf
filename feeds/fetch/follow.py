"""Follows redirects, hop by hop, and tells permanent ones from others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import httpx

from feeds.credentials import refused
from feeds.fetch.exchange import Reply, web_address
from feeds.fetch.failures import FetchError

PERMANENT = frozenset({301, 308})
REDIRECTS = frozenset({302, 303, 307}) | PERMANENT


@dataclass(frozen=True, slots=True)
class Answer:
    """The last answer, and the address to which permanent redirects lead, up to the first that is not permanent."""

    reply: Reply
    address: str


async def follow(
    get: Callable[[httpx.URL], Awaitable[Reply]],
    address: str,
    hops: int,
    moved: Callable[[str], None] = lambda address: None,
) -> Answer:
    """Fetches an address and follows its redirects. Raises FetchError for more than `hops` of them, and for a circle.

    `moved` hears of the address, and of each address to which only permanent redirects lead, before it is fetched.
    """
    url = web_address(address)
    lasting, for_ever = address, True
    met = {url}
    moved(address)
    while (reply := await get(url)).status in REDIRECTS:
        target = reply.headers.get("Location", "")
        if not target:
            raise FetchError(f"{url} redirects ({reply.status}) without saying where", reply.status)
        try:
            url = web_address(str(url.join(target)))
        except (httpx.InvalidURL, ValueError):
            raise FetchError(
                f"{url} redirects to {refused(target)!r:.200}, which is no address", reply.status
            ) from None
        for_ever = for_ever and reply.status in PERMANENT
        if for_ever:
            lasting = str(url)
        if url in met:
            raise FetchError(f"the redirects lead back to {url}", reply.status)
        met.add(url)
        if len(met) > hops + 1:
            raise FetchError(f"more than {hops} redirects", reply.status)
        if for_ever:
            moved(lasting)
    return Answer(reply, lasting)

"""The older entries of a feed, page by page: archives and paged feeds (RFC 5005), and JSON Feed's `next_url`.

A feed names its next older page, and each page the one before it. Pages are documents of the feed like its own, but
they are not visits: they do not show what the feed lists now. The position in a chain of pages is a row of the state,
so that reading resumes after a kill. Each step is a pure function of that row and of a page's links.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b

import httpx

from common.dates import iso_utc
from feeds.feed import read_feed
from feeds.fetch.http import FetchError, Hints, Reply, web_address
from feeds.fetch.state import Pace, PageChain, after_failure
from feeds.items import Origin, absolute, is_url, without_credentials

MOST_PAGES, MOST_BYTES, MOST_TRIES = 500, 256 << 20, 5
"""Maximum number of pages read of a feed, of their total bytes, and of consecutive failures of one page."""

OLDER = "prev-archive", "next"
"""Link relations to the next older page: of archived feeds; of paged feeds and JSON Feed."""

_LINK = re.compile(r"<([^<>]*+)>([^<]*+)")
_PARAMETER = re.compile(r""";\s*+([\w*-]++)\s*+=\s*+(?:"([^"]*+)"|([^\s",;]*+))""")
_LONGEST_HEADER = 8_000  # characters read of a Link header

_Link = tuple[str, str]  # relation and address


@dataclass(frozen=True, slots=True)
class PageLinks:
    """The links of an answer, headers first, and the latest date of its entries, in microseconds."""

    links: tuple[_Link, ...] = ()
    newest: int | None = None

    def of(self, *relations: str) -> Iterable[_Link]:
        """The links with these relations, in the order of the relations."""
        return ((name, url) for name in relations for rel, url in self.links if rel == name and is_url(url))

    @classmethod
    def of_answer(cls, reply: Reply, answer: object) -> PageLinks:
        """Combines the links of the headers with the result of `find_links`. Raises FetchError if that is malformed."""
        match answer:
            case [[*links], int() | None as newest]:
                pairs = (link for link in links if isinstance(link, list) and len(link) == 2)
                named = [(str(rel), str(address)) for rel, address in pairs]
                return cls((*header_links(reply.headers, reply.url), *named), newest)
        raise FetchError("the process that parsed the answer gave an invalid result")


def header_links(headers: Mapping[str, str], base: str) -> list[_Link]:
    """The links of `Link` headers (RFC 8288), by each of their relations.

    >>> header_links({"Link": '<https://hub.example/>; rel="hub", </feed>; rel=self'}, "https://a.example/x")
    [('hub', 'https://hub.example/'), ('self', 'https://a.example/feed')]
    """
    found = []
    for address, parameters in _LINK.findall(headers.get("Link", "")[:_LONGEST_HEADER]):
        named = {name.lower(): quoted or plain for name, quoted, plain in reversed(_PARAMETER.findall(parameters))}
        if "anchor" not in named:  # else it is another resource's
            found += [(rel, absolute(base, address)) for rel in named.get("rel", "").lower().split()]
    return found


def find_links(body: bytes, url: str, content_type: str, dated: bool) -> list[object]:
    """The links of a feed and, if `dated`, the latest date of its entries, as JSON for `PageLinks.of_answer`. Slow on
    hostile input: see `feeds.confined`."""
    try:
        feed, entries = read_feed(body, Origin(url, 0, url, 0, url, content_type), "item")
        links = [(rel, address) for names, address in feed.links for rel in names.split()]
        found = (one[0] for one in entries if dated and not isinstance(one, str))
        times = [time for entry in found for time in (entry.date, entry.updated) if time is not None]
    except ValueError:  # the reader of the feed reports the error
        return [[], None]
    return [links, max(times, default=None)]


# ------------------------------------------------------------ the chain


def begun(
    feed: str, span: int, page: PageLinks, reply: Reply, sha256: str, now: int, known: PageChain | None = None
) -> PageChain:
    """The chain of a feed, from its own answer, to read as far back as `span`. A longer span resumes where it ended."""
    if known is not None and (known.next or known.pages):
        again = replace(known, span=span, since=max(now - span, 0), next_check=now)
        return replace(again, failures=0, error="", done=False) if known.next else again
    chain = PageChain(feed, span, max(now - span, 0), next_check=now, seen=_seen(_seen("", reply.url), sha256))
    return _on(chain, page, "the feed names no older page")


def unwanted(chain: PageChain) -> PageChain:
    """The chain after the setting to read older pages was removed. Setting any span resumes it."""
    return replace(chain, span=0, done=True, error="no older page is to be read any more")


def after_page(chain: PageChain, reply: Reply, page: PageLinks, sha256: str) -> tuple[PageChain, bool]:
    """The chain after a page, and whether the page has wanted entries. Raises FetchError for a repeated page."""
    if _digest(sha256) in chain.seen.split():
        raise FetchError(f"{without_credentials(reply.url)} repeats an earlier page", reply.status)
    if page.newest is not None and page.newest < chain.since:
        return replace(chain, done=True, failures=0, error=""), False
    read = replace(chain, pages=chain.pages + 1, bytes=chain.bytes + len(reply.body), failures=0, error="")
    return _on(replace(read, seen=_seen(read.seen, sha256)), page), True


def after_failed_page(chain: PageChain, error: FetchError, now: int, pace: Pace, random: float) -> PageChain:
    """The chain after a page that could not be read: the page is retried, or the chain ends there."""
    failures = chain.failures + 1
    lasts = error.status in (200, 304) or (400 <= error.status < 500 and error.status not in (408, 425, 429))
    cause = without_credentials(f"{chain.next}: {error}")
    if lasts or failures >= MOST_TRIES:
        return replace(chain, failures=failures, error=cause, done=True)
    check = after_failure(now, failures, error.not_before, Hints(), pace, random)
    return replace(chain, failures=failures, error=cause, next_check=check)


def _on(chain: PageChain, page: PageLinks, none: str = "") -> PageChain:
    """Moves the chain to the next page that a page names, or to its end: with the reason `none` if no page was read."""
    relations = (chain.relation,) if chain.relation else OLDER
    relation, address = next(iter(page.of(*relations)), ("", ""))
    if not address:
        return replace(chain, next="", done=True, error=none)
    try:
        address = str(_in_place_of(chain, address))
    except FetchError as error:
        return replace(chain, next="", done=True, error=str(error))
    chain = replace(chain, relation=relation, next=address)
    if _digest(address) in chain.seen.split():
        return replace(chain, next="", done=True, error=f"{without_credentials(address)} leads in a circle")
    if chain.pages >= MOST_PAGES or chain.bytes >= MOST_BYTES:
        what = f"{MOST_PAGES:,} pages" if chain.pages >= MOST_PAGES else f"{MOST_BYTES >> 20:,} MiB"
        return replace(chain, done=True, error=f"stopped at the limit of {what}")
    return replace(chain, seen=_seen(chain.seen, address))


def _in_place_of(chain: PageChain, address: str) -> httpx.URL:
    """The normalised address, with the feed's user name and password if the host is the feed's. Raises FetchError."""
    url, feed = web_address(address), httpx.URL(chain.feed)
    if feed.userinfo and not url.userinfo and (url.scheme, url.netloc) == (feed.scheme, feed.netloc):
        return url.copy_with(userinfo=feed.userinfo)
    return url


def _seen(seen: str, what: str) -> str:
    return f"{seen} {_digest(what)}".strip()


def _digest(what: str) -> str:
    return blake2b(what.encode(), digest_size=8).hexdigest()


def chain_text(chain: PageChain) -> str:
    """How far a chain was read, as `feeds list` and the web page show it."""
    count = f"{chain.pages:,} older {'page' if chain.pages == 1 else 'pages'} read"
    back = f"back to {iso_utc(chain.since)[:10]}" if chain.next and chain.since else "to the end"
    text = (f"{count}, {back}" if not chain.error else count) if chain.done else f"{count}, going {back}"
    return f"{text}; {chain.error}" if chain.error else text

"""Pages of items: the newest stored documents, searched and filtered, and one with its fields, versions, outputs, and
suggested queries."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException

from common.dates import DAY
from common.errors import InvalidValue
from mmqjp.present.item import IN_UTC
from mmqjp.present.item_list import ItemDetails, ItemFilter, ItemList, ListedItem, item_details, list_items
from mmqjp.tables.lookup import Row
from mmqjp.web.site import Link, Site, cursor, decode_cursor, segment, with_query

LINKS = (Link("/items", "Items", 25),)

LONGEST = 400  # maximum length of a search, in characters
LONGEST_FEED = 4_000
MOST_NAMES = 200  # maximum number of query names, and of feeds, to choose from
MAKE_WORDS = 3  # number of words in a suggested query

_Search = Annotated[
    str,
    Query(
        max_length=LONGEST,
        description="Only items with all of these words, ignoring case, in the title, authors, categories, "
        "description or content; of other documents, in the text.",
    ),
]
_Feed = Annotated[str, Query(max_length=LONGEST_FEED, description="Only items of the feed with this address.")]
_Day = Annotated[str, Query(max_length=40, description="Only items of this UTC day, such as 2026-07-16.")]
_After = Annotated[str | None, Query(description="The `next` of the previous page.")]


@dataclass(frozen=True, slots=True)
class ItemPage:
    """A page of documents, newest first. With a search, a page may be short or empty and still have a `next`: the
    number of documents compared per page is limited."""

    items: tuple[ListedItem, ...]
    next: str | None


def item_page(site: Site, search: str = "", feed: str = "", day: str = "", after: str | None = None) -> ItemPage:
    """Raises InvalidValue for a search without words, an invalid day, or an invalid cursor."""
    since = _begin_of(day.strip()) if day.strip() else None
    until = None if since is None else since + DAY
    wanted = ItemFilter(feed.strip(), since, until, " ".join(search.split()))
    before = decode_cursor(after, int, int)

    def read() -> ItemList:
        make = partial(list_items, partial(_rows, site), wanted, before)
        if not wanted.is_search:
            return make()
        with site.slow():
            return make()

    found = site.kept.get(("items", wanted, before), site.reader.version(), read)
    return ItemPage(found.items, None if found.next is None else cursor(*found.next))


_DAY = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)


def _begin_of(day: str) -> int:
    if not _DAY.fullmatch(day):
        raise InvalidValue(f"day: {day!r} is not a day: write it as 2026-07-16")
    try:
        return IN_UTC.read(day)
    except ValueError:
        raise InvalidValue(f"day: there is no {day}: write a day such as 2026-07-16") from None


def _rows(site: Site, sql: str) -> list[Row]:
    found: list[Row] = site.select(sql).to_pylist()
    return found


def details(site: Site, docid: int) -> ItemDetails:
    """Raises HTTPException 404."""
    version = site.reader.version()
    found = site.kept.get(("item", docid), version, partial(item_details, partial(_rows, site), docid))
    if found is None:
        raise HTTPException(404, f"no document with the number {docid} is stored: it may have been pruned")
    return found


class QuerySuggestion(NamedTuple):
    """A suggested query for an item: what it would find, and the address of the page that builds it."""

    label: str
    url: str


def recipes_of(item: ItemDetails) -> list[QuerySuggestion]:
    """Returns the recipes (docs/recipes.md) that can be filled in from an item."""
    found = list[QuerySuggestion]()

    def add(label: str, recipe: str, **fields: str) -> None:
        found.append(QuerySuggestion(label, with_query("/build", recipe=recipe, **fields)))

    words = item.words[:MAKE_WORDS]
    if words:
        add(f"Whatever has one of the words {', '.join(words)}", "my_words", words=", ".join(words))
        if item.feed:
            add("The same, in this feed only", "my_words", words=", ".join(words), feed=item.feed)
    if item.author:
        add(f"What {item.author} writes", "by_author", author=item.author)
    if item.feed:
        add("Pages of this feed that come back with another headline", "retitled", feed=item.feed)
        add("When this feed falls silent", "silent", feed=item.feed)
    return found


def items_router(site: Site, routes: APIRouter) -> None:
    @routes.get("/items", response_class=HTMLResponse)
    def page(
        request: Request, search: _Search = "", feed: _Feed = "", day: _Day = "", after: _After = None
    ) -> Response:
        found, error = ItemPage((), None), ""
        try:
            found = item_page(site, search, feed, day, after)
        except InvalidValue as wrong:
            if after:
                raise
            error = str(wrong)
        tallied = site.feed_items()
        most = sorted(tallied, key=lambda url: -tallied[url].items)[:MOST_NAMES]
        return site.render(
            request, "items.html", 400 if error else 200, found=found, search=search, feed=feed, day=day, after=after,
            error=error, feeds=sorted(most),
        )  # fmt: skip

    @routes.get("/items/{docid:int}", response_class=HTMLResponse)
    def item(request: Request, docid: int) -> Response:
        found = details(site, docid)
        named = {one.query for one in found.outputs}
        tally = site.tallies.current()
        names = [name for name in tally.names if name not in named][:MOST_NAMES]
        return site.render(request, "item.html", found=found, recipes=recipes_of(found), names=names)

    @routes.get("/items/{docid:int}/why-not")
    def why_not(docid: int, query: Annotated[str, Query(max_length=200)]) -> Response:
        """Redirects to the page that explains why the item gives no output of a query."""
        document = details(site, docid).item.id
        return RedirectResponse(with_query(f"/q/{segment(query.strip())}/why-not", document=document), 303)

    @routes.get("/api/v1/items", tags=["items"], summary="List the newest items, or search them")
    def items(search: _Search = "", feed: _Feed = "", day: _Day = "", after: _After = None) -> ItemPage:
        return item_page(site, search, feed, day, after)

    @routes.get("/api/v1/items/{docid}", tags=["items"], summary="Show an item, its versions and outputs")
    def one(docid: int) -> ItemDetails:
        return details(site, docid)


ROUTERS = (items_router,)

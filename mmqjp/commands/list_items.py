"""`mmqjp items`: lists stored items, newest first, filtered by feed, time and words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mmqjp.commands import formats, options
from mmqjp.commands.formats import check_output, data_file, time_since, write_rows
from mmqjp.commands.manage_queries import client, store_options
from mmqjp.present.item import TimeFormat, format_rows, source
from mmqjp.present.item_list import ItemFilter, ListedItem, list_items
from mmqjp.service.sql_question import QUERY

SHOWN = 50  # items listed by default

COLUMNS = (
    *("docid", "t0", "title", "url", "author", "feed", "feed_title", "categories", "first_seen", "versions"),
    *("stream", "id"),
)
_FOR_PEOPLE = ("t0", "title", "from", "url")


@click.command()
@click.option("--feed", metavar="ADDRESS", default="", help="Only items of the feed with this address.")
@click.option(
    "--since", metavar="TIME|DURATION",
    help="Only items since this time, such as 2026-07-16, or within a duration, such as 2d.",
)  # fmt: skip
@click.option(
    "--search", metavar="WORDS", default="",
    help="Only items with all of these words, ignoring case, in the title, authors, categories, description or "
    "content; of other documents, in the text.",
)  # fmt: skip
@click.option(
    "--limit", metavar="N", type=options.AtLeast(1), default=SHOWN, show_default=True, help="Only the newest N."
)
@formats.format_option
@formats.tz_option
@formats.output_option
@store_options
def items(
    feed: str, since: str | None, search: str, limit: int, form: str | None, clock: TimeFormat, output: Path | None,
    state: Path, wait: float,
) -> None:  # fmt: skip
    """List the items that a store keeps, newest first.

    \b
    Examples:
      mmqjp items --state state/ --since 2d
      mmqjp items --state state/ --search "ferry strike" --format csv --output items.csv

    An item is an entry of a feed, or any other document from outside. Only the newest version of a changed entry is
    listed. table, html and markdown show time, title, origin and address; csv, json and jsonl show more, with times in
    UTC. The SQL views items and versions have the same data (mmqjp query). A running service answers without
    interrupting its work.
    """
    chosen = formats.chosen_format(form, output)
    wanted = ItemFilter(feed.strip(), None if since is None else time_since(since, clock), None, search)
    asked = client(state, wait)

    def select(sql: str) -> list[dict[str, Any]]:
        found = asked.ask(QUERY, {"sql": sql, "seconds": None})
        return [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]

    check_output(output)
    found, before = list[ListedItem](), None
    while True:
        page = list_items(select, wanted, before, limit - len(found))
        found += page.items
        before = page.next
        if before is None or len(found) >= limit:
            break
    for_people = chosen in formats.FOR_PEOPLE
    columns = _FOR_PEOPLE if for_people else COLUMNS
    rows = [(_row_for_people if for_people else _row)(one) for one in found]
    with data_file(check_output(output)) as file:
        shown = format_rows(columns, rows, formats.clock_of(chosen, clock))
        write_rows(columns, shown, chosen, "Items", output, file)


def _row_for_people(one: ListedItem) -> tuple[object, ...]:
    return one.item.time, one.item.title, source(one.item), one.item.link


def _row(one: ListedItem) -> tuple[object, ...]:
    item = one.item
    return (
        one.docid, item.time, item.title, item.link or None, one.author or None, one.feed or None, item.feed or None,
        list(one.categories), one.first_seen, one.versions, item.stream, item.id,
    )  # fmt: skip

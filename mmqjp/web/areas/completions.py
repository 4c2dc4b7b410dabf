"""Completions for the query editor: keywords and functions of the language, streams and events of the store, and names
in the newest documents, by parent element."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from fastapi import APIRouter, Response
from lxml import etree

from mmqjp.present.query_lookup import event_streams, stored_records
from mmqjp.queries.model import generated_name_number
from mmqjp.tables import lookup
from mmqjp.web.site import MOST_CACHED, NO_STORE, Site
from xscl.check_expressions import FUNCTIONS
from xscl.lalr import grammar_keywords

MOST_STREAMS, MOST_PUBLISHED = 20, 500
"""Maximum number of streams (those with the most documents), and of names of queries, which are streams too."""

MOST_DOCUMENTS, LONGEST_READ, MOST_NAMES = 40, 100_000, 1_000
"""Maximum number of newest documents read per stream, of characters of each, and of names per stream."""

_STREAMS = f"""SELECT stream, count(*) AS documents FROM documents WHERE kind <> 'hidden' GROUP BY stream
ORDER BY documents DESC, stream LIMIT {MOST_STREAMS}"""


@dataclass(frozen=True, slots=True)
class Completions:
    """`paths` has, by stream and parent element ("" above the roots), the names of elements and attributes (`@name`) in
    it; a name in a namespace is `*:name`. `events` has attributes by event."""

    keywords: tuple[str, ...]
    functions: tuple[str, ...]
    streams: tuple[str, ...]
    events: Mapping[str, tuple[str, ...]]
    paths: Mapping[str, Mapping[str, tuple[str, ...]]]


def _name(tag: str, sign: str = "") -> str:
    namespace, _, local = tag.rpartition("}")
    return f"{sign}{'*:' if namespace else ''}{local}"


def names_by_parent(documents: Iterable[Iterable[etree._Element]]) -> dict[str, tuple[str, ...]]:
    """Returns the names in documents by parent element, the first MOST_NAMES."""
    found: dict[str, dict[str, None]] = {}
    left = MOST_NAMES
    for elements in documents:
        for at, element in enumerate(elements):
            if not isinstance(element.tag, str):
                continue
            name, parent = _name(element.tag), element.getparent() if at else None
            above = "" if parent is None else _name(str(parent.tag))
            new = [(above, name), *((name, _name(str(one), "@")) for one in element.attrib)]
            for owner, one in new:
                names = found.setdefault(owner, {})
                if one not in names and left:
                    names[one] = None
                    left -= 1
    return {owner: tuple(sorted(names)) for owner, names in found.items() if names}


def completions(site: Site) -> Completions:
    """Raises what reading the store raises."""
    select = partial(site.select, limit=MOST_CACHED)
    streams = [row["stream"] for row in select(_STREAMS).to_pylist()]
    paths = {}
    for stream in streams:
        wanted = lookup.newest_documents(select, [stream], MOST_DOCUMENTS)
        records = stored_records(select, [one for one in wanted if one[1] <= LONGEST_READ])
        paths[stream] = names_by_parent(record.tree.elements for record in records)
    known = event_streams(select)
    schemas = {**known.defined, **known.published}
    events = {name: tuple(attribute for attribute, _ in schema) for name, schema in schemas.items()}
    published = [one for one in site.tallies.current().names if not generated_name_number(one)][:MOST_PUBLISHED]
    return Completions(
        grammar_keywords(), tuple(sorted(FUNCTIONS)), tuple(dict.fromkeys([*streams, *published])), events, paths
    )


def completions_router(site: Site, routes: APIRouter) -> None:
    @routes.get("/api/v1/completions", tags=["queries"], summary="Completions for an editor of queries")
    def complete(response: Response) -> Completions:
        response.headers.update(NO_STORE)
        return site.kept.get("completions", site.tallies.current().registered, partial(completions, site))


ROUTERS = (completions_router,)

"""The newest outputs of all queries, or of one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from mmqjp.present.match import Match
from mmqjp.web.site import Site
from mmqjp.web.stored_outputs import StoredOutputs

SHOWN = 30
"""The newest outputs that the page shows at first."""

LOOKED_THROUGH = 300
"""So many of the newest outputs are looked through for those of one query."""


@dataclass(frozen=True, slots=True)
class LatestOutputs:
    """The latest outputs, the newest first. `newest` is the number after which further ones follow, -1 if there is
    none yet."""

    matches: tuple[Match, ...]
    newest: int


def latest(site: Site, query: str = "", most: int = SHOWN) -> LatestOutputs:
    """Returns the latest outputs; with `query`, those of one name among the LOOKED_THROUGH latest."""
    return site.kept.get(("latest", query, most), site.reader.version(), partial(_latest, site, query, most))


def _latest(site: Site, query: str, most: int) -> LatestOutputs:
    if not query and (remembered := site.matches.latest(most)) is not None:
        return LatestOutputs(remembered, remembered[0].output.seq)
    outputs = StoredOutputs(site.own)
    oldest, newest = outputs.span()
    if newest < oldest:
        return LatestOutputs((), -1)
    begin = newest - (LOOKED_THROUGH if query else most)
    found = [match for match in outputs.after(max(begin, oldest - 1), newest) if query in ("", match.output.query)]
    return LatestOutputs(tuple(reversed(found[-most:])), newest)

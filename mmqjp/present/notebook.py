"""What a notebook shows: matches, why there is one, and how queries are run. The style counts for these parts alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from markupsafe import Markup

from mmqjp.present.match import Match
from mmqjp.present.output_why import OutputWhy
from mmqjp.present.page import template
from mmqjp.present.times import Clock
from mmqjp.present.why_text import sections


def matches_html(matches: Sequence[Match], more: str, clock: Clock) -> str:
    """Returns matches in their order. `more` says what is not shown, "" if that is nothing."""
    context: dict[str, object] = {"matches": matches, "more": more, "zone": _zone(matches, clock)}
    return _rendered("notebook_matches.html", clock, context)


def why_html(found: OutputWhy, clock: Clock) -> str:
    """Returns why an output came about."""
    context: dict[str, object] = {
        "found": found,
        "sections": list(sections(found)),
        "zone": _zone([found.match], clock),
    }
    return _rendered("notebook_why.html", clock, context)


def explanation_html(lines: Iterable[str], picture: str) -> str:
    """Returns how queries are run: a picture of their join graphs, as SVG, and an explanation to unfold."""
    # The picture is ours: what draws it escapes the texts of queries.
    return _rendered("notebook_explanation.html", Clock(), {"lines": "\n".join(lines), "picture": Markup(picture)})


def _zone(matches: Sequence[Match], clock: Clock) -> str:
    return clock.zone_at(matches[-1].output.t1) if matches else ""


def _rendered(name: str, clock: Clock, context: dict[str, object]) -> str:
    known = {"minute": clock.minute, "iso": clock.iso, "style": Markup(_style())}
    return template(name).render(known | context)


@cache
def _style() -> str:
    return template("notebook.css").render()

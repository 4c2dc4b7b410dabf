"""Templates of pages. All text is escaped; what matches look like comes from `mmqjp.present`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import quote, urlencode

from jinja2 import ChoiceLoader, Environment, PackageLoader, PrefixLoader, StrictUndefined

from mmqjp.present.facts import values, why
from mmqjp.present.marks import marked_title
from mmqjp.present.report import counted, source
from mmqjp.present.times import Clock
from mmqjp.present.why_not_text import TITLES, count_text, notes, stage_name
from mmqjp.present.why_text import sections


def environment(clock: Clock) -> Environment:
    """Returns the environment of the templates of pages. Those of `mmqjp.present` are below `present/`. Times are in
    the zone of `clock`."""
    made = Environment(
        loader=ChoiceLoader([PackageLoader("mmqjp.web"), PrefixLoader({"present": PackageLoader("mmqjp.present")})]),
        autoescape=True,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    functions: dict[str, Callable[..., object]] = {
        "why": why, "values": values, "marked_title": marked_title, "source": source, "counted": counted,
        "minute": clock.minute, "iso": clock.iso, "zone_at": clock.zone_at, "with_query": with_query,
        "sections": sections, "stage_name": stage_name, "count_text": count_text, "notes": notes,
    }  # fmt: skip
    made.globals.update(functions)
    made.globals["verdict_titles"] = TITLES
    made.filters["number"] = number
    made.filters["segment"] = segment
    made.filters["bytes"] = size
    made.filters["duration"] = duration
    return made


def number(value: int) -> str:
    """Returns a number with commas: `2,314`."""
    return f"{value:,}"


def size(count: int | None) -> str:
    """Returns a number of bytes in words.

    >>> size(None), size(900), size(48_100_000)
    ('–', '900 B', '45.9 MiB')
    """
    if count is None:
        return "–"
    number, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if number < 1024 or unit == "TiB":
            break
        number /= 1024
    return f"{count:,} B" if unit == "B" else f"{number:,.1f} {unit}"


def duration(microseconds: int | None) -> str:
    """Returns a duration in its two largest units.

    >>> duration(None), duration(1_500_000), duration(90_000_000), duration(200_000_000_000)
    ('–', '1.5 s', '1 min 30 s', '2 d 7 h')
    """
    if microseconds is None:
        return "–"
    seconds = max(microseconds, 0) / 1_000_000
    if seconds < 60:
        return f"{seconds:.1f} s"
    left = int(seconds)
    parts: list[str] = []
    for name, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        if left >= length or parts:
            parts.append(f"{left // length} {name}")
            left %= length
    return " ".join(part for part in parts[:2] if not part.startswith("0 "))


def segment(text: str) -> str:
    """Returns a text as one segment of an address's path."""
    return quote(text, safe="")


def with_query(path: str, **fields: object) -> str:
    """Returns an address with those fields that are neither None nor "".

    >>> with_query("/", search="a b", after=None, state="")
    '/?search=a+b'
    """
    given: Mapping[str, object] = {key: value for key, value in fields.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path

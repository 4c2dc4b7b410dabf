"""What the queries of a store share: which templates they have, with how many rows of R_T, and what these cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SharedRowUse:
    """A row of R_T: its number, how many conjunctive queries subscribe to it, and names of some of their queries."""

    row: int
    subscribers: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SharedTemplate:
    """A template: its number and structure, the rows of R_T that it has, and how many conjunctive queries subscribe to
    them; the rows with the most subscribers.

    `milliseconds` and `matches` are those of the last batch that it was answered in, together with the templates
    `together`; None if that is not known. `one_more` is what one more row would take in such a batch, in milliseconds:
    an average. One more query of a row that is there takes nothing but its outputs.
    """

    template: int
    structure: str
    rows: int
    subscribers: int
    most_shared: tuple[SharedRowUse, ...]
    milliseconds: float | None = None
    matches: int | None = None
    together: tuple[int, ...] = ()
    one_more: float | None = None


@dataclass(frozen=True, slots=True)
class Sharing:
    """What the queries of a store share. `shown` has the costliest of its `templates`.

    `queries` counts the registered queries, `forms` the different ones among them but for names and windows, `patterns`
    the shared steps of tree patterns, `rows` and `subscribers` those of all templates. `plan` is what was measured.
    """

    queries: int
    forms: int
    patterns: int
    rows: int
    subscribers: int
    templates: int
    shown: tuple[SharedTemplate, ...]
    plan: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns a JSON object."""
        return asdict(self)

    @staticmethod
    def from_dict(found: Mapping[str, Any]) -> Sharing:
        """Returns what such an object says."""
        shown = (
            SharedTemplate(
                **one
                | {
                    "most_shared": tuple(
                        SharedRowUse(row["row"], row["subscribers"], tuple(row["names"])) for row in one["most_shared"]
                    ),
                    "together": tuple(one["together"]),
                }
            )
            for one in found["shown"]
        )
        return Sharing(**{**found, "shown": tuple(shown)})

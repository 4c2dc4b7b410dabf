"""What templates cost: measured by the plans while they answer a batch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds that a batch's matches of some templates took, these templates, and how many matches there were.

    What a plan does once for all templates is not in it.
    """

    seconds: float
    matches: int
    templates: tuple[int, ...]


class Costs:
    """The costs of the last batch that each template was answered in."""

    def __init__(self) -> None:
        self._of: dict[int, Cost] = {}

    def add(self, cost: Cost) -> None:
        for template in cost.templates:
            self._of[template] = cost

    def of_templates(self) -> dict[int, Cost]:
        return dict(self._of)

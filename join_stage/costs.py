"""The costs of templates, which the plans measure while they answer a batch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of the matches of some templates in a batch: `seconds`, the number of `matches`, and the `templates`.

    What a plan does once for all templates is not included.
    """

    seconds: float
    matches: int
    templates: tuple[int, ...]


class Costs:
    """The cost of each template in the last batch in which it was answered."""

    def __init__(self) -> None:
        self._of: dict[int, Cost] = {}

    def add(self, cost: Cost) -> None:
        for template in cost.templates:
            self._of[template] = cost

    def of_templates(self) -> dict[int, Cost]:
        return dict(self._of)

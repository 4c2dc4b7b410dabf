"""A match as a person sees it: an output with its documents, the reason for it, and the values that it selects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mmqjp.answers.output import Output
from mmqjp.explain.operands import Condition, JoinedValue, Operand
from mmqjp.explain.reasons import Reason, Timing
from mmqjp.present.item import Item


@dataclass(frozen=True, slots=True)
class Match:
    """An output as a person sees it. There is an item for each of `output.documents`.

    `reason` is None if it cannot be told. `selected` has the name and text of each value in the output document of a
    query with SELECT.
    """

    output: Output
    items: tuple[Item, ...]
    reason: Reason | None = None
    selected: tuple[tuple[str, str], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns a JSON object: that of the output line, and `items`, `why` and `selected`."""
        why = None if self.reason is None else _why(self.reason)
        selected = [{"name": name, "text": text} for name, text in self.selected]
        return self.output.to_dict() | {
            "items": [asdict(item) for item in self.items],
            "why": why,
            "selected": selected,
        }

    @staticmethod
    def from_dict(found: Mapping[str, Any]) -> Match:
        """Returns the match of such an object."""
        output = {key: found[key] for key in ("query", "t0", "t1", "nodes", "xml", "id", "seq")}
        return Match(
            Output(documents=tuple(found["documents"]), streams=tuple(found["streams"]), **output),
            tuple(Item(**item) for item in found["items"]),
            None if found["why"] is None else _reason(found["why"]),
            tuple((one["name"], one["text"]) for one in found["selected"]),
        )


def _why(reason: Reason) -> dict[str, Any]:
    joined = [asdict(one) | {"value": one.left.value} for one in reason.joined]
    conditions, filters = map(_conditions, (reason.conditions, reason.filters))
    timings = [asdict(one) | {"distance": one.distance, "gap": one.gap} for one in reason.timings]
    return {"joined": joined, "conditions": conditions, "filters": filters, "timings": timings}


def _conditions(found: Iterable[Condition]) -> list[dict[str, Any]]:
    return [
        {"text": one.text, "parts": [part if isinstance(part, str) else asdict(part) for part in one.parts]}
        for one in found
    ]


def _reason(found: Mapping[str, Any]) -> Reason:
    return Reason(
        tuple(JoinedValue(_operand(one["left"]), _operand(one["right"])) for one in found["joined"]),
        _read_conditions(found["conditions"]),
        tuple(Timing(one["op"], one["window"], tuple(one["left"]), tuple(one["right"])) for one in found["timings"]),
        _read_conditions(found["filters"]),
    )


def _read_conditions(found: Iterable[Mapping[str, Any]]) -> tuple[Condition, ...]:
    return tuple(
        Condition(tuple(part if isinstance(part, str) else _operand(part) for part in one["parts"])) for one in found
    )


def _operand(found: Mapping[str, Any]) -> Operand:
    return Operand(found["name"], found["text"], tuple(found["functions"]), found["document"], found["node"])

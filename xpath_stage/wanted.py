"""Which string values a walk asks for, and where they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from templates.witness import node_id
from xpath_stage.columns import Columns
from xpath_stage.emissions import ITS_OWN, OTHERS, Emissions, Functions, Ints, Walk
from xscl.functions import derive


@dataclass(frozen=True, slots=True)
class Wanted:
    """Nodes whose values are wanted: the elements and the attributes (by their numbers in the columns) whose own are,
    and those of which others are derived, (element or owner, attribute or None, functions)."""

    elements: list[int]
    attributes: list[int]
    derived: list[tuple[int, int | None, Functions]]

    def nodes(self, columns: Columns) -> tuple[Ints, Ints]:
        """The ids of the nodes, over all documents, and the elements that they belong to."""
        owners = [columns.owners[number] for number in self.attributes]
        ids = [node_id(owner, columns.places[k]) for owner, k in zip(owners, self.attributes, strict=True)]
        ids += [node_id(owner, 0 if k is None else columns.places[k], names) for owner, k, names in self.derived]
        owners += [owner for owner, _, _ in self.derived]
        return np.array(self.elements + ids, np.int64), np.array(self.elements + owners, np.int64)

    def read(self, columns: Columns) -> list[str | None]:
        """The values, in the order of `nodes`; None may stand for ''."""
        values = columns.string_values(self.elements)
        if self.attributes or self.derived:
            values += self._read_others(columns)
        return values

    def _read_others(self, columns: Columns) -> list[str | None]:
        """The values that are not elements' own."""
        values: list[str | None] = [columns.values[number] for number in self.attributes]
        elements = [element for element, attribute, _ in self.derived if attribute is None]
        texts = iter(columns.string_values(elements))
        for _, attribute, functions in self.derived:
            value = (next(texts) or "") if attribute is None else columns.values[attribute]
            for name in functions:
                value = derive(name, value)
            values.append(value)
        return values


def wanted(emissions: Emissions, walk: Walk) -> Wanted:
    """What a walk asks for."""
    elements, of_elements = _asked(emissions, *walk.of_elements(), len(walk.elements))
    attributes, of_attributes = _asked(emissions, *walk.of_attributes(), len(walk.attributes))
    derived: list[tuple[int, int | None, Functions]] = [(element, None, names) for element, names in of_elements]
    derived += [(walk.owners[attribute], attribute, names) for attribute, names in of_attributes]
    return Wanted(elements, attributes, derived)


def _asked(
    emissions: Emissions, nodes: Ints, emission: Ints, once: int
) -> tuple[list[int], list[tuple[int, Functions]]]:
    """The nodes whose own values are asked for, and those of which others are, with the functions: each once, though
    from the place `once` on there are nodes that were there before."""
    wants = emissions.table().wants[emission]
    own = nodes[wants == ITS_OWN]
    asked = [
        (nodes[place].item(), names)
        for place in np.flatnonzero(wants == OTHERS).tolist()
        for names in emissions.values[emission[place]]
    ]
    if asked:
        own = np.append(own, np.array([node for node, names in asked if not names], np.int64))
    if asked or len(nodes) > once:
        own = np.unique(own)
    return own.tolist(), list(dict.fromkeys((node, names) for node, names in asked if names))

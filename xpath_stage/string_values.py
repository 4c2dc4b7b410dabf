"""The string values that a walk needs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from common.distinct import distinct
from templates.witness import node_id
from xpath_stage.columns import Columns
from xpath_stage.emissions import ITS_OWN, OTHERS, Derivation, Emissions, Ints, Walk
from xscl.algebra.functions import derive


@dataclass(frozen=True, slots=True)
class StringValues:
    """The nodes whose values are needed. `elements` and `attributes` are those whose own values are, by number in the
    columns. `derived` has the nodes of derived values: element or owner, attribute or None, and derivation."""

    elements: list[int]
    attributes: list[int]
    derived: list[tuple[int, int | None, Derivation]]

    def nodes(self, columns: Columns) -> tuple[Ints, Ints]:
        """The ids of the nodes, with elements numbered across all documents, and the elements that they belong to. Both
        have an entry for each value."""
        owners = [columns.owners[number] for number in self.attributes]
        ids = [node_id(owner, columns.places[k]) for owner, k in zip(owners, self.attributes, strict=True)]
        ids += [node_id(owner, 0 if k is None else columns.places[k], chain) for owner, k, (chain, _) in self.derived]
        owners += [owner for owner, _, _ in self.derived]
        return np.array(self.elements + ids, np.int64), np.array(self.elements + owners, np.int64)

    def read(self, columns: Columns) -> list[str | None]:
        """The values, in the order of `nodes`. None may stand for ''."""
        values = columns.string_values(self.elements)
        if self.attributes or self.derived:
            values += self._read_others(columns)
        return values

    def _read_others(self, columns: Columns) -> list[str | None]:
        """The values of attributes, and derived values."""
        values: list[str | None] = [columns.values[number] for number in self.attributes]
        elements = [element for element, attribute, _ in self.derived if attribute is None]
        texts = iter(columns.string_values(elements))
        for _, attribute, (_, functions) in self.derived:
            value = (next(texts) or "") if attribute is None else columns.values[attribute]
            for name in functions:
                value = derive(name, value)
            values.append(value)
        return values


def string_values(emissions: Emissions, walk: Walk) -> StringValues:
    """The string values that a walk needs."""
    elements, of_elements = _asked(emissions, *walk.of_elements(), len(walk.elements))
    attributes, of_attributes = _asked(emissions, *walk.of_attributes(), len(walk.attributes))
    derived: list[tuple[int, int | None, Derivation]] = [(element, None, how) for element, how in of_elements]
    derived += [(walk.owners[attribute], attribute, how) for attribute, how in of_attributes]
    return StringValues(elements, attributes, derived)


def _asked(
    emissions: Emissions, nodes: Ints, emission: Ints, once: int
) -> tuple[list[int], list[tuple[int, Derivation]]]:
    """The distinct nodes whose own values are needed, and the distinct pairs of a node and a derivation. `nodes` and
    `emission` have one length; from index `once` on, nodes may be repeated."""
    wants = emissions.table().wants[emission]
    own = nodes[wants == ITS_OWN]
    asked = [
        (nodes[place].item(), how)
        for place in np.flatnonzero(wants == OTHERS).tolist()
        for how in emissions.values[emission[place]]
    ]
    if asked:
        own = np.append(own, np.array([node for node, (chain, _) in asked if not chain], np.int64))
    if asked or len(nodes) > once:
        own = distinct(own)
    return own.tolist(), list(dict.fromkeys((node, how) for node, how in asked if how[0]))

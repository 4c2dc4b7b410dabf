"""Random definitions of events, which often match documents like those of `tests.generate.documents`."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tests.generate.blocks import BlockMaker, Name, derived
from tests.generate.documents import chance, document_xml
from xscl.algebra.values import Expr, Number, String, VarPath, is_number
from xscl.syntax import DefinedAttribute, EventDefinition

FUNCTIONS = ("lower-case", "normalize-space", "string-length", "host", "date", "words", "substring-after")


def random_definition(rng: Random, name: str = "E", stream: str = "S", most: int = 4) -> EventDefinition:
    """A definition of 1 to `most` attributes."""
    maker = BlockMaker(rng, namespaced=False)
    block, names = maker.block(stream, document_xml(rng, root="a"), bind_root=True)
    attributes = tuple(_attribute(rng, maker, names, f"a{i}") for i in range(rng.randint(1, most)))
    return EventDefinition(name, block, attributes)


def _attribute(rng: Random, maker: BlockMaker, names: Sequence[Name], name: str) -> DefinedAttribute:
    if chance(rng, 5):
        return DefinedAttribute(name, String("x"), False, False)
    if chance(rng, 5):
        return DefinedAttribute(name, Number("7"), True, False)
    chosen = rng.choice(names)
    below = maker.path(chosen.at) if chosen.at is not None and chance(rng, 75) else None
    operand: Expr = VarPath(chosen.var, below[0] if below else ())
    if below and chance(rng, 55):
        return DefinedAttribute(name, operand, False, True)
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        operand = derived(rng, FUNCTIONS, operand)
    return DefinedAttribute(name, operand, chance(rng, 25) or is_number(operand), False)

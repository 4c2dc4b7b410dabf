"""Random definitions of events, which often match documents like those of `tests.generate.documents`."""

from __future__ import annotations

from random import Random

from tests.generate.comparisons import derived
from tests.generate.documents import INNER_TAGS, chance
from tests.generate.documents import value as random_value
from xscl.algebra.values import Axis, Compare, Expr, NameTest, Number, Rel, Step, String, VarPath, is_number
from xscl.syntax import Block, DefinedAttribute, EventDefinition

FUNCTIONS = ("lower-case", "normalize-space", "string-length", "host", "date", "words", "substring-after")


def random_definition(rng: Random, name: str = "E", stream: str = "S", most: int = 4) -> EventDefinition:
    """A definition of 1 to `most` attributes over a block of a few steps, filters and variables."""
    grower = _Grower(rng)
    steps = tuple(grower.step(depth=0) for _ in range(rng.choice((1, 1, 2))))
    block = Block(stream, steps)
    attributes = tuple(grower.attribute(f"a{i}") for i in range(rng.randint(1, most)))
    return EventDefinition(name, block, attributes)


class _Grower:
    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._elements: list[str] = []
        self._others: list[str] = []

    def step(self, depth: int) -> Step:
        """A step with filters that may bind variables."""
        rng = self._rng
        axis: Axis = "//" if chance(rng, 60) else "/"
        if depth and chance(rng, 20):
            return Step(axis, NameTest("attribute", rng.choice("kkm")), (), self._bound(self._others))
        tag = "*" if chance(rng, 25) else rng.choice("a" + INNER_TAGS)
        var = self._bound(self._elements, always=depth == 0)
        filters: tuple[Expr, ...] = ()
        if depth < 2:
            filters = tuple(self._filter(depth) for _ in range(rng.choice((0, 0, 1, 1, 2))))
        return Step(axis, NameTest("element", tag), filters, var)

    def _filter(self, depth: int) -> Expr:
        rng = self._rng
        if chance(rng, 15):
            return Compare("=", Rel((Step("/", NameTest("element", "b")),)), String(random_value(rng)))
        return Rel((self.step(depth + 1),))

    def _bound(self, among: list[str], *, always: bool = False) -> str | None:
        if not always and chance(self._rng, 50):
            return None
        among.append(f"v{len(self._elements) + len(self._others)}")
        return among[-1]

    def attribute(self, name: str) -> DefinedAttribute:
        """An attribute of any kind."""
        rng = self._rng
        if chance(rng, 5):
            return DefinedAttribute(name, String("x"), False, False)
        if chance(rng, 5):
            return DefinedAttribute(name, Number("7"), True, False)
        if self._others and chance(rng, 25):
            operand: Expr = VarPath(rng.choice(self._others))
        else:
            var = rng.choice(self._elements)
            if chance(rng, 30):
                return DefinedAttribute(name, VarPath(var, self._path()), False, True)
            operand = VarPath(var, self._path() if chance(rng, 70) else ())
        for _ in range(rng.choice((0, 0, 0, 1, 2))):
            operand = derived(rng, FUNCTIONS, operand)
        return DefinedAttribute(name, operand, chance(rng, 25) or is_number(operand), False)

    def _path(self) -> tuple[Step, ...]:
        rng = self._rng
        steps = []
        for _ in range(rng.choice((1, 1, 2))):
            filters = (Rel((Step("/", NameTest("attribute", "k")),)),) if chance(rng, 15) else ()
            axis: Axis = "//" if chance(rng, 40) else "/"
            steps.append(Step(axis, NameTest("element", rng.choice("abc*")), filters))
        if chance(rng, 25):
            steps.append(Step("/", NameTest("attribute", "k")))
        return tuple(steps)

from collections.abc import Iterator

import pytest

from tests.support.places import DATA
from xscl.algebra.joins import Absent, Conjunct, Hidden, NormalQuery, Term
from xscl.algebra.values import And, Compare, ElementConstructor, Expr, Or, VarPath
from xscl.check import TooManyDisjuncts, disjuncts
from xscl.lower import normalize
from xscl.parser import parse_script
from xscl.printer import to_xscl
from xscl.syntax import Script, Window

CASE, HALF = "\n====\n", "\n----\n"
FILES = sorted((DATA / "normal").glob("*.txt"))


def _cases() -> Iterator[object]:
    for file in FILES:
        for number, case in enumerate(file.read_text(encoding="utf-8").rstrip("\n").split(CASE), 1):
            script, expected = case.split(HALF)
            yield pytest.param(script, expected, id=f"{file.stem}-{number}")


class Describer:
    """Writes normal forms as text. Hidden streams are numbered as they are met: equal ones have one number."""

    def __init__(self) -> None:
        self.hidden: dict[str, Hidden] = {}

    def script(self, script: Script) -> str:
        blocks: list[str] = []
        for query in script.queries:
            blocks += self.query(normalize(query, dict(script.namespaces)))
        done = 0
        while done < len(self.hidden):
            stream, hidden = list(self.hidden.items())[done]
            blocks.append(f"{self.name(stream)}: {hidden.op} {window(hidden.window)}, {hidden.side}")
            blocks.append(f"  tuple {', '.join(hidden.variables)}")
            blocks += self.conjuncts(hidden.conjuncts, hidden.absent)
            done += 1
        return "\n".join(blocks)

    def name(self, stream: str) -> str:
        return f"#{list(self.hidden).index(stream) + 1}" if stream.startswith("#") else stream

    def query(self, normal: NormalQuery) -> Iterator[str]:
        yield f"{normal.op} {window(normal.window)}" if normal.op else "FILTER"
        shown = [f"{entry.key} = {text(entry.value)}" for entry in normal.entries]
        yield f"  select {'* ' if normal.star else ''}{', '.join(shown)}"
        if isinstance(normal.constructor, ElementConstructor):
            yield f"  in <{normal.constructor.name}> {', '.join(map(text, normal.holes))}"
        if normal.once is not None:
            within = "for ever" if normal.once.window is None else f"within {window(normal.once.window)}"
            yield f"  once per {', '.join(map(to_xscl, normal.once.keys))} {within}"
        yield from self.conjuncts(normal.conjuncts, normal.absent)

    def conjuncts(self, conjuncts: tuple[Conjunct, ...], absent: tuple[Absent, ...]) -> Iterator[str]:
        if absent:
            assert conjuncts[1:] == tuple(Conjunct(one.right, None) for one in absent)
            yield from self.conjuncts(conjuncts[:1], ())
        for one in absent:
            yield "  without"
            if one.right.hidden:
                self.hidden.setdefault(one.right.stream, one.right.hidden)
            yield f"    right {self.name(one.right.stream)} {one.right.pattern}"
            yield from (f"    path {branch.var}{branch.path}" for branch in one.branches)
            yield from (f"    join {text(left)} = {text(right)}" for left, right in one.joins)
            yield from (f"    where {to_xscl(residual)}" for residual in one.residual)
        if absent:
            return
        for number, conjunct in enumerate(conjuncts):
            if number:
                yield "  or"
            for label, side in zip(("left", "right"), conjunct.sides(), strict=False):
                if side.hidden:
                    self.hidden.setdefault(side.stream, side.hidden)
                yield f"  {label} {self.name(side.stream)} {side.pattern}"
            for left, right in conjunct.joins:
                yield f"  join {text(left)} = {text(right)}"
            for residual in conjunct.residual:
                yield f"  where {to_xscl(residual)}"


def window(us: int | None) -> str:
    return to_xscl(Window(us))


def text(value: Term | str) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    shown = value.var
    for name in value.functions:
        shown = f"{name}({shown})"
    return shown


@pytest.mark.parametrize(("script", "expected"), list(_cases()))
def test_normal_form(script: str, expected: str):
    assert Describer().script(parse_script(script)) == expected


def literal(i: int) -> Expr:
    return Compare("=", VarPath(f"x{i}"), VarPath(f"y{i}"))


def test_the_limit() -> None:
    pairs = tuple(Or((literal(2 * i), literal(2 * i + 1))) for i in range(5_000))
    assert len(disjuncts(And(pairs[:6]))) == 64
    for many in (pairs[:7], pairs):
        with pytest.raises(TooManyDisjuncts, match="64"):
            disjuncts(And(many))
    assert len(disjuncts(And(pairs[:7]), limit=128)) == 128
    with pytest.raises(TooManyDisjuncts):
        disjuncts(Or(tuple(literal(i) for i in range(65))))

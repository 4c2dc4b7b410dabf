"""What the conditions of a query block found in a document that it matches: each condition, with its values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from mmqjp.answers.residual import holds
from mmqjp.explain.operands import Condition, Operand, in_parts, operand_of
from xpath_stage.binder import Node, Part, Path, each_binding
from xpath_stage.parse import ParsedDocument
from xscl import parse_script, to_xscl
from xscl.algebra.expressions import And, Call, Compare, Expr, Not, Number, Or, Rel, Step, String, VarPath
from xscl.algebra.functions import TESTS, derivation
from xscl.algebra.pattern import PatternNode, attach
from xscl.lower_paths import PatternBuilder
from xscl.scope import blocks

Take = Callable[[int], object]

_END = "end"


@dataclass(frozen=True, slots=True)
class Filters:
    """The conditions in the filters of a query, by their XPath text, as its text has them, and what builds paths."""

    conditions: Mapping[str, Expr]
    builder: PatternBuilder


@lru_cache(maxsize=256)
def filters_of(text: str) -> Filters:
    """Returns the conditions in the filters of a query, given its text as stores have it."""
    script = parse_script(text, stored=True)
    builder = PatternBuilder(dict(script.namespaces))
    found = {
        str(builder.condition(arm).xpath): arm
        for query in script.queries
        for block in blocks(query.source)
        for arm in _conditions(block.steps)
    }
    return Filters(found, builder)


def findings(
    pattern: PatternNode, tree: ParsedDocument, nodes: Mapping[str, Node], filters: Filters, place: int, take: Take
) -> Iterator[Condition]:
    """Yields the conditions of a pattern with what they found in a document, at nodes that its variables have. `place`
    is that of the document among those of the output."""
    if not any(node.conditions for node in pattern.walk()):
        return
    named = _numbered(pattern)
    fixed = {path: nodes[node.var] for path, node in _paths(pattern) if node.var is not None and node.var in nodes}
    for found in each_binding(Part(named), tree, fixed, take):
        image = dict(found)
        break
    else:
        return
    for path, node in _paths(pattern):
        at = image[_name(path)]
        for condition in node.conditions:
            if condition.literal is not None:
                yield Condition((operand_of(tree, at, (), place), f" = {to_xscl(String(condition.literal))}"))
            elif (expr := filters.conditions.get(str(condition.xpath))) is not None:
                yield _found(expr, named, path, at, tree, filters, place, take)


def _found(
    expr: Expr, named: PatternNode, path: Path, at: Node, tree: ParsedDocument, filters: Filters, place: int, take: Take
) -> Condition:
    """A condition on a node, with the values that it compares."""
    operands: dict[str, Operand] = {}
    paths: list[Rel] = []

    def name_of(rel: Rel) -> Expr:
        name = f"v{len(paths)}"
        nodes = [at]
        if rel.steps:
            branch = attach(named, _name(path), filters.builder.path(rel.steps, last_var=_END))
            part = Part(_only(branch, _END))
            nodes = [node for ((_, node),) in each_binding(part, tree, {path: at}, take)]
        if not nodes:
            return rel
        paths.append(rel)
        found = [operand_of(tree, node, (), place) for node in nodes]
        operands[name] = next((one for one in found if _holds(expr, rel, one.text)), found[0])
        return VarPath(name)

    return Condition(in_parts(_with_values(expr, name_of), operands))


def _holds(expr: Expr, rel: Rel, text: str) -> bool:
    """Whether a comparison with one path holds for one of its values."""
    mine = _with_values(expr, lambda one: VarPath("v") if one is rel else one)
    match mine:
        case Compare(left=left, right=right) if _is_value(left) and _is_value(right):
            return holds(mine, {"v": text}.__getitem__)
        case Call(name=name, args=args) if name in TESTS and all(map(_is_value, args)):
            return holds(mine, {"v": text}.__getitem__)
    return False


def _is_value(operand: Expr) -> bool:
    """Whether an operand has a value without the document: it has no other path."""
    while isinstance(operand, Call) and derivation(operand):
        operand = operand.args[0]
    return isinstance(operand, VarPath | String | Number)


def _with_values(expr: Expr, name_of: Callable[[Rel], Expr]) -> Expr:
    """A condition in which something else stands for each path whose value it compares."""
    match expr:
        case Compare(op=op, left=left, right=right):
            return Compare(op, _value(left, name_of), _value(right, name_of))
        case Call(name=name, args=args) if name in TESTS:
            return Call(name, tuple(_value(arg, name_of) for arg in args))
        case And(args=args):
            return And(tuple(_with_values(arg, name_of) for arg in args))
        case Or(args=args):
            return Or(tuple(_with_values(arg, name_of) for arg in args))
        case Not(arg=arg):
            return Not(_with_values(arg, name_of))
    return expr


def _value(operand: Expr, name_of: Callable[[Rel], Expr]) -> Expr:
    match operand:
        case Rel():
            return name_of(operand)
        case Call(name=name, args=(arg, *more)) if derivation(operand):
            return Call(name, (_value(arg, name_of), *more))
    return operand


def _conditions(steps: tuple[Step, ...]) -> Iterator[Expr]:
    """Yields the conditions in the filters of a path, and of the paths in these."""
    for step in steps:
        for arm in (arm for condition in step.filters for arm in _arms(condition)):
            if isinstance(arm, Rel):
                yield from _conditions(arm.steps)
            else:
                yield arm
                if isinstance(arm, Compare):
                    for side in (arm.left, arm.right):
                        yield from _conditions(side.steps) if isinstance(side, Rel) else ()


def _arms(expr: Expr) -> Iterator[Expr]:
    if isinstance(expr, And):
        for arg in expr.args:
            yield from _arms(arg)
    else:
        yield expr


def _name(path: Path) -> str:
    return "n" + ".".join(map(str, path))


def _numbered(node: PatternNode, path: Path = ()) -> PatternNode:
    """The pattern in which each node has a variable of its own."""
    children = tuple(_numbered(child, (*path, place)) for place, child in enumerate(node.children))
    return replace(node, var=_name(path), children=children)


def _only(node: PatternNode, name: str) -> PatternNode:
    children = tuple(_only(child, name) for child in node.children)
    return replace(node, var=name if node.var == name else None, children=children)


def _paths(node: PatternNode, path: Path = ()) -> Iterator[tuple[Path, PatternNode]]:
    """Yields the nodes of a pattern with their paths, in pre-order."""
    yield path, node
    for place, child in enumerate(node.children):
        yield from _paths(child, (*path, place))

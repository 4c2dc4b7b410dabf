"""A plan for people: its m-ops with what they do, how many rows they have, and what they read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pattern_stage.definition import Operator
from pattern_stage.formula import condition_text, value_text
from pattern_stage.plan import MOp, Plan
from pattern_stage.simultaneous import all_measures, finest
from xscl.algebra.event_sequences import NearPattern, Pattern
from xscl.algebra.events import Aggregate, Condition, Filter, Fold, Next, Parameter, Select, Union


@dataclass(frozen=True, slots=True)
class Described:
    """An m-op: a node of the plan, whose edges are `reads`."""

    number: int
    title: str
    """The stream of a source, or the operators, each shape once, with `?1` for the first parameter."""
    shapes: tuple[str, ...]
    rows: int
    forms: int
    """How many forms of statements share it."""
    reads: tuple[int, ...]


def described(plan: Plan) -> list[Described]:
    """Returns the m-ops of a plan, inputs before those that read them. What several AGGREGATEs share is one of them."""
    partials = plan.partials()
    number_of = {mop.number: number for number, mops in partials.items() for mop in mops}
    found: dict[int, Described] = {}
    for mop in plan:
        one, number = _described(mop), number_of.get(mop.number)
        if number is not None:
            found.setdefault(number, _partial(number, partials[number]))
            one = replace(one, reads=(number,))
        found[mop.number] = one
    return list(found.values())


def _partial(number: int, mops: Sequence[MOp]) -> Described:
    """Describes what AGGREGATEs are made of: what is simultaneous, by all attributes that any of them groups by."""
    definitions = [one for mop in mops for one in mop.definitions if isinstance(one, Aggregate)]
    names = {"known": "count"}
    functions = dict.fromkeys(
        f"{names.get(one.what, one.what)}({value_text(one.of, _parameter, True)})"
        for definition in definitions
        for one in all_measures(definition)
    )
    by = finest(definitions)
    shape = f"AGGREGATE{{{', '.join(['count()', *functions])}{' BY ' * bool(by)}{', '.join(by)}}}"
    rows = len({row for mop in mops for row in mop.rows.left[mop.rows.numbers()].tolist()})
    forms = sum(mop.users for mop in mops)
    return Described(number, "PARTIAL AGGREGATES", (shape,), rows, forms, mops[0].inputs)


def plan_text(plan: Plan) -> str:
    """Returns a plan as lines of text, one for an m-op and one for each of its shapes."""
    lines = []
    for one in described(plan):
        reads = "".join(f" {'and' if at else 'of'} {number}" for at, number in enumerate(one.reads))
        rows = f": {one.rows} row{'s' * (one.rows != 1)}" if one.reads else ""
        lines.append(f"{one.number}  {one.title}{reads}{rows}, in {one.forms} form{'s' * (one.forms != 1)}")
        lines += [f"     {shape}" for shape in one.shapes]
    return "\n".join(lines)


def _described(mop: MOp) -> Described:
    if mop.placement is None:
        return Described(mop.number, mop.stream, (), 1, mop.users, ())
    shapes = tuple(operator_text(one) for one in mop.definitions)
    title = type(mop.definitions[0]).__name__.upper()
    return Described(mop.number, title, shapes, len(mop.rows), mop.users, mop.inputs)


def operator_text(operator: Operator) -> str:
    """Returns an operator as it is written in a statement, without its inputs."""
    match operator:
        case Select(_, items):
            return "SELECT " + ", ".join(f"{value_text(value, _parameter, True)} AS {name}" for name, value in items)
        case Filter(_, condition):
            return f"FILTER{{{condition_text(condition, _parameter, True)}}}"
        case Union():
            return "UNION"
        case Next(condition=condition):
            return f"NEXT{{{_condition(condition)}}}"
        case Fold(chooses=chooses, continues=continues, sets=sets):
            new = ", ".join(f"{value_text(value, _parameter)} AS {name}" for name, value in sets)
            return f"FOLD{{{_condition(chooses)}, {_condition(continues)}, {new}}}"
        case Aggregate(_, items, by, over):
            functions = (
                f"{one.name}({', '.join(value_text(arg, _parameter, True) for arg in one.args)}) AS {name}"
                for name, one in items
            )
            groups = f" BY {', '.join(by)}" if by else ""
            return f"AGGREGATE{{{', '.join(functions)}{groups}{'' if over is None else ' OVER ?'}}}"

        case Pattern(variables=variables, strategy=strategy, keys=keys):
            names = ", ".join(
                f"~({one.name})" if one.negated else f"{one.name}[]" if one.kleene else one.name for one in variables
            )
            return f"SEQ({names}) {strategy} [{', '.join(keys)}]"
        case NearPattern(errors=errors, keys=keys):
            return f"SEQ ERRORS <= {errors} [{', '.join(keys)}]"


def _condition(condition: Condition) -> str:
    return condition_text(condition, _parameter)


def _parameter(parameter: Parameter) -> str:
    return f"?{parameter.index + 1}"

"""The conditions of PATTERN statements as they are written."""

from __future__ import annotations

from collections.abc import Sequence

from pattern_stage.formula import condition_text, rewritten, rewritten_condition, value_text
from xscl.algebra.event_sequences import Conjunct, Length, Names, OfItem, Pattern, Referent, Variable
from xscl.algebra.events import AllOf, Attribute, Condition, Value

_PLACES = {"only": "", "first": "[1]", "each": "[i]", "previous": "[i-1]", "every": "[]"}

STRATEGIES = {
    "strict": "strict_contiguity",
    "partition": "partition_contiguity",
    "next": "skip_till_next_match",
    "any": "skip_till_any_match",
}


def written(condition: Condition, names: Names, variables: Sequence[Variable]) -> str:
    """Returns a condition of a pattern with these variables; nothing if it always holds."""
    if condition == AllOf():
        return ""
    texts = {name: referent_text(of, variables) for name, of in names}
    return condition_text(rewritten_condition(condition, lambda leaf: _renamed(leaf, texts)), str, bare=True)


def all_written(conjuncts: Sequence[Conjunct], pattern: Pattern) -> str:
    """Returns conjuncts as one condition; nothing if there are none."""
    return " AND ".join(written(one.condition, one.names, pattern.variables) for one in conjuncts)


def referent_text(of: Referent, variables: Sequence[Variable]) -> str:
    """Returns how something of a match is written, such as `p[i-1].price`."""
    name = variables[of.variable].name
    if isinstance(of, Length):
        return f"{name}.LEN"
    if isinstance(of, OfItem):
        place = f"[{name}.LEN]" if of.place == "last" else _PLACES[of.place]
        return f"{name}{place}.{of.name}"
    items = f"{name}[..i-1]" if of.earlier else f"{name}[]"
    args = [
        value_text(rewritten(arg, lambda leaf: _of_items(leaf, items)), str, bare=True) for arg in of.aggregated.args
    ]
    return f"{of.aggregated.name}({', '.join(args) or items})"


def component_text(variable: Variable) -> str:
    """Returns a component of SEQ."""
    one = f"{variable.source.stream}{'+' if variable.kleene else ''} {variable.name}{'[]' if variable.kleene else ''}"
    return f"~({one})" if variable.negated else one


def _renamed(leaf: Value, texts: dict[str, str]) -> Value:
    return Attribute(leaf.part, texts[leaf.name], leaf.kind) if isinstance(leaf, Attribute) else leaf


def _of_items(leaf: Value, items: str) -> Value:
    return Attribute(leaf.part, f"{items}.{leaf.name}", leaf.kind) if isinstance(leaf, Attribute) else leaf

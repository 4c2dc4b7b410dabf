"""The normal form of statements as one question in SQL, over a table of events a source and one of parameters.

Strings are codes in all tables, so that a string is a number there, and NULL is SQL's. What is derived from an event
alone is a column of its table, which the kernel's own functions compute. SQL does the rest.

What an operator needs of its inputs is asked of them from the last operator on, until it is asked of the sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pattern_stage.definition import Form, Node
from pattern_stage.formula import rewritten, rewritten_condition
from pattern_stage.replay.alike import Constants, fixed_constants
from pattern_stage.replay.scope import Derived, NotSql, Place, Scope, plain
from xscl.algebra.events import (
    Attribute,
    Condition,
    Constant,
    Filter,
    Next,
    Parameter,
    Part,
    Schema,
    Select,
    TextTest,
    Union,
    Value,
)


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table of events: its name and stream, and the columns that it has beside `t0`, `t1` and `k`, the number of the
    event."""

    name: str
    stream: str
    schema: Schema
    columns: Mapping[Derived, str]


@dataclass(frozen=True, slots=True)
class Question:
    """A question about all statements of a form, and the tables that it is over.

    The table `p` has a row for each statement: `q`, its number, `since`, a column `w0`, `w1`, ... for each window, and
    `parameters`. The answer has a row for each result, perhaps more than once: `q`, `t0`, `t1`, the numbers of the
    events that it was made of as `k0`, `k1`, ..., and its attributes as `outputs`.
    """

    sql: str
    sources: tuple[SourceTable, ...]
    parameters: Mapping[Derived, str]
    events: int
    """How many columns there are for the events of a result."""
    outputs: tuple[str, ...]


def is_askable(form: Form) -> bool:
    """Returns whether there is a question for a form: it has no FOLD and no AGGREGATE, and what its conditions compute
    of several events is arithmetic, `coalesce`, or a test whether one text contains another."""
    try:
        fixed_constants(form, question)
    except NotSql:
        return False
    return True


def question(form: Form, fixed: Constants) -> Question:
    """Returns the question for a form in which some constants are known.

    Raises:
        NotSql: if there is none.
    """
    return _Questioner(form, fixed).question()


@dataclass(slots=True)
class _Relation:
    """What is known of a node before its text is written."""

    has_q: bool
    """Whether it has events for each statement apart."""
    events: int
    is_forked: bool
    """Whether two of its events may be made of the same ones."""
    columns: dict[Derived, str] = field(default_factory=dict)

    @property
    def own(self) -> list[str]:
        """The columns that every relation has."""
        return ["q"] * self.has_q + ["t0", "t1", "f1"] + [f"k{place}" for place in range(self.events)]


class _Questioner:
    def __init__(self, form: Form, fixed: Constants) -> None:
        self._form, self._fixed = form, fixed
        self._relations: list[_Relation] = []
        for node in form.nodes:
            self._relations.append(self._relation(node))
        self._parameters: dict[Derived, str] = {}

    def _relation(self, node: Node) -> _Relation:
        inputs = [self._relations[place] for place in node.inputs]
        own = node.window >= 0 or any(slot not in self._fixed for slot in node.slots)
        has_q = own or any(one.has_q for one in inputs)
        is_forked = any(one.is_forked for one in inputs)
        counts = [one.events for one in inputs] or [1]
        if node.definition is None:
            return _Relation(False, 1, False)
        match node.definition.operator:
            case Next():
                return _Relation(has_q, sum(counts), is_forked)
            case Union():
                return _Relation(has_q, max(counts), True)
            case Filter() | Select():
                return _Relation(has_q, counts[0], is_forked)
        raise NotSql("FOLD and AGGREGATE have no question in SQL")

    def question(self) -> Question:
        nodes = self._form.nodes
        last = len(nodes) - 1
        wanted = [self._column(last, (Attribute("left", *one), plain(one[1]))) for one in self._form.schema]
        texts = [""] * len(nodes)
        sources: list[SourceTable] = []
        for place in range(last, -1, -1):
            node = nodes[place]
            if node.definition is None:
                table = SourceTable(f"e{place}", node.stream, node.schema, self._relations[place].columns)
                sources.append(table)
                body = _select(["t0", "t1", "t1 AS f1", "k AS k0", *table.columns.values()], [table.name], [])
            else:
                body = self._text(node, place)
            texts[place] = f"n{place} AS ({body})"
        root = self._relations[last]
        q = "n.q" if root.has_q else "p.q"
        where = ["n.f1 > p.since", *(["n.q = p.q"] if root.has_q else [])]
        found = [f"{q} AS q", "n.t0", "n.t1", *(f"n.k{at}" for at in range(root.events)), *(f"n.{c}" for c in wanted)]
        sql = f"WITH {', '.join(texts)} {_select(found, [f'n{last} n', 'p'], where)}"
        return Question(sql, tuple(sources), self._parameters, root.events, tuple(wanted))

    # ------------------------------------------------------------ columns

    def _column(self, place: Place, derived: Derived) -> str:
        """Asks a node for a column. Returns its name there."""
        columns = self._relations[place].columns
        return columns.setdefault(derived, f"c{place}_{len(columns)}")

    def _parameter(self, derived: Derived) -> str:
        return self._parameters.setdefault(derived, f"s{len(self._parameters)}")

    def _scope(self, node: Node) -> Scope:
        return Scope(node.inputs, self._column, self._parameter)

    def _leaf(self, node: Node, leaf: Value) -> Value:
        """Returns a leaf with the number of a constant in the statement in place of its number in the node."""
        if not isinstance(leaf, Parameter):
            return leaf
        slot = node.slots[leaf.index]
        return Constant(self._fixed[slot]) if slot in self._fixed else Parameter(slot, leaf.kind)

    def _condition(self, node: Node, condition: Condition) -> Condition:
        return rewritten_condition(condition, lambda leaf: self._leaf(node, leaf))

    # ------------------------------------------------------------ operators

    def _text(self, node: Node, place: Place) -> str:
        assert node.definition is not None
        match node.definition.operator:
            case Filter(condition=condition):
                scope = self._scope(node)
                where = scope.condition(self._condition(node, condition))
                columns = [f"{scope.derived(one)} AS {name}" for one, name in self._relations[place].columns.items()]
                return self._single(node, place, scope, columns, [where])
            case Select(items=items):
                values = {name: rewritten(value, lambda leaf: self._leaf(node, leaf)) for name, value in items}
                scope = self._scope(node)
                columns = self._renamed(place, scope, lambda leaf: values[leaf.name])
                return self._single(node, place, scope, columns, [])
            case Union():
                return " UNION ALL ".join(self._branch(place, at) for at in node.inputs)
            case Next(condition=condition, names=names, schema=schema):
                return self._next(node, place, self._condition(node, condition), names, schema)
            case _:
                raise AssertionError("refused before")

    def _renamed(self, place: Place, scope: Scope, value_of: Callable[[Attribute], Value]) -> list[str]:
        """Returns the columns of a node whose attributes are values of its inputs'."""

        def leaf(value: Value) -> Value:
            return value_of(value) if isinstance(value, Attribute) else value

        found = []
        for (item, form), name in self._relations[place].columns.items():
            if isinstance(item, TextTest):
                found.append(f"{scope.condition(rewritten_condition(item, leaf))} AS {name}")
            else:
                found.append(f"{scope.value(rewritten(item, leaf), form)} AS {name}")
        return found

    def _single(self, node: Node, place: Place, scope: Scope, columns: Iterable[str], where: Iterable[str]) -> str:
        """The text of an operator with one input."""
        relation, below = self._relations[place], self._relations[node.inputs[0]]
        own = ["l.q" if name == "q" and below.has_q else "p.q" if name == "q" else f"l.{name}" for name in relation.own]
        sources, joins = self._sources(node, scope, relation.has_q)
        return _select([*own, *columns], sources, [*joins, *where])

    def _branch(self, place: Place, at: Place) -> str:
        """The text of one side of UNION."""
        relation, below = self._relations[place], self._relations[at]
        own = [_of_branch(name, below) for name in relation.own]
        columns = [f"l.{self._column(at, derived)} AS {name}" for derived, name in relation.columns.items()]
        sources = [f"n{at} l", *(["p"] if relation.has_q and not below.has_q else [])]
        return _select([*own, *columns], sources, [])

    def _next(
        self, node: Node, place: Place, condition: Condition, names: tuple[tuple[Part, str], ...], schema: Schema
    ) -> str:
        """The text of NEXT: of all pairs those with the least t1 of the right event, for each left one."""
        scope, relation = self._scope(node), self._relations[place]
        of = {name: Attribute(part, source, kind) for (part, source), (name, kind) in zip(names, schema, strict=True)}
        where = ["r.t0 > l.t1", scope.condition(condition)]
        columns = self._renamed(place, scope, lambda leaf: of[leaf.name])
        if node.window >= 0:
            where.append(f"r.t1 - l.t0 <= {scope.window(node.window)}")
        left, right = (self._relations[at] for at in node.inputs)
        sources, joins = self._sources(node, scope, relation.has_q)
        q = ["l.q" if left.has_q else "r.q" if right.has_q else "p.q"] if relation.has_q else []
        events = [f"l.k{at}" for at in range(left.events)]
        same = [*q, *events, *(["l.t0", "l.t1", *(f"l.{name}" for name in left.columns.values())] * left.is_forked)]
        events += [f"r.k{at}" for at in range(right.events)]
        found = [f"{one} AS q" for one in q] + ["l.t0 AS t0", "r.t1 AS t1", "l.f1 AS f1"]
        found += [f"{one} AS k{at}" for at, one in enumerate(events)]
        found.append(f"rank() OVER (PARTITION BY {', '.join(same)} ORDER BY r.t1) AS place")
        pairs = _select([*found, *columns], sources, [*joins, *where])
        return _select([*relation.own, *relation.columns.values()], [f"({pairs}) pairs"], ["place = 1"])

    def _sources(self, node: Node, scope: Scope, has_q: bool) -> tuple[list[str], list[str]]:
        """What a node reads, and the conditions by which that belongs together."""
        sides = list(zip("lr", node.inputs, strict=False))
        sources = [f"n{at} {side}" for side, at in sides]
        of = [f"{side}.q" for side, at in sides if self._relations[at].has_q]
        if scope.uses_parameters or (has_q and not of):
            sources.append("p")
            of.append("p.q")
        return sources, [f"{one} = {of[0]}" for one in of[1:]]


def _of_branch(name: str, below: _Relation) -> str:
    if name in below.own:
        return f"l.{name}"
    return "p.q" if name == "q" else f"CAST(NULL AS BIGINT) AS {name}"


def _select(columns: Iterable[str], sources: Iterable[str], where: Iterable[str]) -> str:
    conditions = [one for one in where if one != "TRUE"]
    return f"SELECT {', '.join(columns)} FROM {', '.join(sources)}" + (
        f" WHERE {' AND '.join(conditions)}" if conditions else ""
    )

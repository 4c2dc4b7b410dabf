"""A one-shot kernel for a complete, finite set of events, which has a database run the statements that it can: on
DuckDB over Arrow or on Spark. Other kernels run the rest.

The normal form of statements is compiled to one SQL query, over a table of events per source and one of parameters.
Strings are codes in all tables, NULL is SQL's. Values derived from a single event or from parameters alone are computed
columns of their table, by the kernel's own functions. Needed columns propagate from the last operator to the sources.
Statements of a form share a query while they share the constants that it fixes. Patterns are matched in two phases.
Phase 1 of match windows is a query, too: a row per event and role, partitioned by statement and keys, aggregates over
the window behind it, which decides where a match may begin. A kernel matches in these windows (see
`pattern_stage.pattern.program.match_windows`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

import duckdb
import numpy as np
import pyarrow as pa

from common.arrays import Ints
from common.bounds import Micros
from common.limits import UNLIMITED, Quota
from pattern_stage.clauses import N, numeric, on_left
from pattern_stage.columns import NULL_TEXT, Column, Columns, bare_columns, each_once, no_events, padded, sorted_flow
from pattern_stage.definition import FormNode, FormStatements, StatementForm, StatementForms
from pattern_stage.kernel import Kernel, Results
from pattern_stage.lineage import Lineage
from pattern_stage.pattern.program import MatchRole, match_windows
from pattern_stage.values import Pairs, Texts, compile_condition, compile_value, every_event
from xscl.algebra import events as algebra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Shown = Literal["code", "number", "text", "truth"]
"""The SQL representation of a value: the code of a string, a number, the string itself, or the `truth` of a test."""

DerivedColumn = tuple[algebra.Value | algebra.TextTest, Shown]
"""The content of a column: a value of the event, taken as the left one, or of parameters."""

_CONTAINS = {
    "contains": "contains({}, {})",
    "starts-with": "substring({0}, 1, length({1})) = {1}",
    "ends-with": "right({0}, length({1})) = {1}",
}


class NotSql(Exception):
    """There is no SQL query for this."""


class AsConstant(Exception):
    """These constants, whose numbers are the argument, cannot be parameters: the query must fix them."""


class SqlScope:
    """The inputs of an operator in SQL: `l` and `r`, and the parameters `p`."""

    def __init__(
        self,
        inputs: Sequence[int],
        column: Callable[[int, DerivedColumn], str],
        parameter: Callable[[DerivedColumn], str],
    ) -> None:
        self._inputs, self._column, self._parameter = inputs, column, parameter
        self.uses_parameters = False

    def window(self, number: int) -> str:
        self.uses_parameters = True
        return f"p.w{number}"

    # ------------------------------------------------------------ conditions

    def condition(self, condition: algebra.EventCondition) -> str:
        """Returns a condition. With a NULL it is not true."""
        match condition:
            case algebra.AllOf(args=args) | algebra.AnyOf(args=args):
                word, none = ("AND", "TRUE") if isinstance(condition, algebra.AllOf) else ("OR", "FALSE")
                written = f" {word} ".join([self.condition(arg) for arg in args]) or none
                return f"({written})" if len(args) > 1 else written
            case algebra.Comparison(op=op, left=left, right=right):
                are_texts = op in ("=", "!=") and algebra.value_kind(left) == algebra.value_kind(right) == "string"
                one, other = (self.value(side, "code" if are_texts else "number") for side in (left, right))
                return f"{one} {'<>' if op == '!=' else op} {other}"
            case algebra.NullTest(value=value, negated=negated):
                return f"{self.value(value, native_form(algebra.value_kind(value)))} IS {'NOT ' if negated else ''}NULL"
            case algebra.TextTest(name=name, args=args, negated=negated):
                if (column := self._of_side(condition, "truth")) is not None:
                    return column
                if name not in _CONTAINS:
                    raise _lacking(condition)
                written = _CONTAINS[name].format(*(self.value(arg, "text") for arg in args))
                return f"NOT ({written})" if negated else written

    # ------------------------------------------------------------ values

    def value(self, value: algebra.Value, form: Shown) -> str:
        if (column := self._of_side(value, form)) is not None:
            return column
        of_events = algebra.Attribute | algebra.Duration | algebra.Gap
        if not any(isinstance(leaf, of_events) for leaf in algebra.leaves(value)):
            self.uses_parameters = True
            return f"p.{self._parameter((value, form))}"
        match value:
            case algebra.Function(name="coalesce", args=args, kind=kind) if form == native_form(kind):
                return f"coalesce({', '.join(self.value(arg, form) for arg in args)})"
            case _ if form != "number":
                raise _lacking(value)
            case algebra.Duration():
                return "CAST(r.t1 - l.t0 AS DOUBLE) / 1e6"
            case algebra.Gap():
                return "CAST(r.t0 - l.t1 AS DOUBLE) / 1e6"
            case algebra.Arithmetic(op=op, left=left, right=right):
                one, other = self.value(left, "number"), self.value(right, "number")
                if op in ("/", "%"):
                    other = f"nullif({other}, CAST(0 AS DOUBLE))"
                # Infinite numbers and NaN are NULL; SQL orders NaN above all others.
                found = f"({one} {op} {other})"
                return f"CASE WHEN abs({found}) < CAST('Infinity' AS DOUBLE) THEN {found} END"
            case algebra.Function(name="abs", args=(arg,)):
                return f"abs({self.value(arg, 'number')})"
            case algebra.Function(name="number", args=(arg,)) if algebra.value_kind(arg) == "number":
                return self.value(arg, "number")
        raise _lacking(value)

    def _of_side(self, item: algebra.Value | algebra.TextTest, form: Shown) -> str | None:
        """Returns the column of what is about one input alone."""
        sides = set[int]()
        for leaf in algebra.leaves(item):
            match leaf:
                case algebra.Parameter():
                    return None
                case algebra.Attribute(part=part):
                    sides.add(1 if part == "right" else 0)
                case algebra.Duration() | algebra.Gap():
                    sides.update(range(len(self._inputs)))
        if len(sides) != 1:
            return None
        (side,) = sides
        return f"{'lr'[side]}.{self._column(self._inputs[side], (on_left(item), form))}"


def native_form(kind: algebra.Kind) -> Shown:
    """Returns the representation in which values of a kind are compared and returned."""
    return "code" if kind == "string" else "number"


def _lacking(node: algebra.Value | algebra.TextTest) -> Exception:
    slots = frozenset(leaf.index for leaf in algebra.leaves(node) if isinstance(leaf, algebra.Parameter))
    return AsConstant(slots) if slots else NotSql("SQL computes no such value of several events")


Constants = dict[int, str | float]  # constants of a form, by number


@dataclass(slots=True)
class QuestionGroup(FormStatements):
    """Statements that share a query, which fixes some of their constants."""

    fixed: Constants = field(default_factory=dict)

    def vectors(self, texts: Texts) -> Pairs:
        """Returns the constants as parameters. Those that the query fixes are not read."""
        columns = zip(zip(*self.constants, strict=True), self.form.kinds, strict=True)
        values = [texts.codes(map(str, of)) if kind == "string" else np.array(of, np.float64) for of, kind in columns]
        return every_event(bare_columns((), len(self)), tuple(values))


def alike_statements(
    statements: Iterable[tuple[int, algebra.Statement, Micros]], asked: Callable[[StatementForm, Constants], object]
) -> Iterable[QuestionGroup]:
    """Groups statements, each with its number and since, by query; `asked` as in `fixed_constants`."""
    forms, slots_of = StatementForms(), dict[int, frozenset[int]]()
    found: dict[tuple[object, ...], QuestionGroup] = {}
    for number, statement, since in statements:
        form, constants, windows = forms.form(statement)
        if id(form) not in slots_of:
            slots_of[id(form)] = fixed_constants(form, asked)
        fixed = {slot: constants[slot] for slot in sorted(slots_of[id(form)])}
        alike = found.setdefault((id(form), *fixed.values()), QuestionGroup(form, fixed=fixed))
        alike.add(number, since, constants, windows)
    return found.values()


def fixed_constants(form: StatementForm, asked: Callable[[StatementForm, Constants], object]) -> frozenset[int]:
    """Returns the constants that the query must fix; the others are parameters. `asked` builds the query of a form with
    fixed constants; its exceptions other than AsConstant propagate."""
    fixed: Constants = {}
    while True:
        try:
            asked(form, fixed)
        except AsConstant as needed:
            fixed |= {slot: "" if form.kinds[slot] == "string" else 0.0 for slot in needed.args[0]}
        else:
            return frozenset(fixed)


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table of events: name, stream, and columns beside `t0`, `t1` and `k`, the number of the event."""

    name: str
    stream: str
    schema: algebra.Schema
    columns: Mapping[DerivedColumn, str]


@dataclass(frozen=True, slots=True)
class StatementQuestion:
    """A query for all statements of a form, and its tables. Table `p` has a row per statement: `q`, its number,
    `since`, windows `w0`, `w1`, ..., and `parameters`. An answer with results has a row per result, perhaps repeated:
    `q`, `t0`, `t1`, the numbers of its `events` as `k0`, `k1`, ..., and its attributes as `outputs`."""

    sql: str
    sources: tuple[SourceTable, ...]
    parameters: Mapping[DerivedColumn, str]
    events: int = 0
    outputs: tuple[str, ...] = ()

    def events_in(self, fed: Mapping[str, Columns]) -> list[Columns]:
        return [fed.get(source.stream, no_events(source.schema)) for source in self.sources]

    def tables(self, group: QuestionGroup, events: Sequence[Columns], texts: Texts) -> dict[str, pa.Table]:
        """Returns the tables for the events of each source, which are numbered one after the other."""
        found, first = {}, 0
        for source, some in zip(self.sources, events, strict=True):
            own = {"t0": some.t0, "t1": some.t1, "k": range(first, first + len(some))}
            found[source.name] = _table(own, source.columns, source.schema, every_event(some), texts)
            first += len(some)
        rows: dict[str, Any] = {"q": range(len(group)), "since": group.since}
        rows |= {f"w{place}": column for place, column in enumerate(zip(*group.windows, strict=True))}
        found["p"] = _table(rows, self.parameters, (), group.vectors(texts), texts)
        return found


def question(form: StatementForm, fixed: Constants) -> StatementQuestion:
    return _QuestionBuilder(form, fixed).question()


@dataclass(slots=True)
class _Relation:
    has_q: bool  # whether it has separate events for each statement
    events: int
    is_forked: bool  # whether two of its events may be made of the same ones
    columns: dict[DerivedColumn, str] = field(default_factory=dict)

    @property
    def own(self) -> list[str]:
        return ["q"] * self.has_q + ["t0", "t1", "f1"] + [f"k{place}" for place in range(self.events)]


class _Builder:
    def __init__(self, form: StatementForm, fixed: Constants) -> None:
        self._form, self._fixed = form, fixed
        self._parameters: dict[DerivedColumn, str] = {}

    def _parameter(self, derived: DerivedColumn) -> str:
        return self._parameters.setdefault(derived, f"s{len(self._parameters)}")

    def _in_form(self, node: FormNode, item: N) -> N:
        """Returns a condition or value of a node with the parameters of the form, or what is fixed for them."""

        def leaf(one: algebra.Value) -> algebra.Value:
            if not isinstance(one, algebra.Parameter):
                return one
            slot = node.slots[one.index]
            return algebra.Constant(self._fixed[slot]) if slot in self._fixed else algebra.Parameter(slot, one.kind)

        return algebra.map_leaves(item, leaf)


class _QuestionBuilder(_Builder):
    def __init__(self, form: StatementForm, fixed: Constants) -> None:
        super().__init__(form, fixed)
        self._relations: list[_Relation] = []
        for node in form.nodes:
            self._relations.append(self._relation(node))

    def _relation(self, node: FormNode) -> _Relation:
        inputs = [self._relations[place] for place in node.inputs]
        own = node.window >= 0 or any(slot not in self._fixed for slot in node.slots)
        has_q = own or any(one.has_q for one in inputs)
        is_forked = any(one.is_forked for one in inputs)
        counts = [one.events for one in inputs] or [1]
        if node.definition is None:
            return _Relation(False, 1, False)
        match node.definition.operator:
            case algebra.Latest():  # what is the latest depends on what a statement sees
                return _Relation(True, sum(counts), is_forked)
            case algebra.Next() | algebra.Filter() | algebra.Select():
                return _Relation(has_q, sum(counts), is_forked)
            case algebra.Union():
                return _Relation(has_q, max(counts), True)
        raise NotSql("FOLD and AGGREGATE have no question in SQL")

    def question(self) -> StatementQuestion:
        nodes = self._form.nodes
        last = len(nodes) - 1
        wanted = [self._column(last, (algebra.Attribute("left", *of), native_form(of[1]))) for of in self._form.schema]
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
        return StatementQuestion(sql, tuple(sources), self._parameters, root.events, tuple(wanted))

    # ------------------------------------------------------------ columns

    def _column(self, place: int, derived: DerivedColumn) -> str:
        columns = self._relations[place].columns
        return columns.setdefault(derived, f"c{place}_{len(columns)}")

    # ------------------------------------------------------------ operators

    def _text(self, node: FormNode, place: int) -> str:
        assert node.definition is not None
        scope = SqlScope(node.inputs, self._column, self._parameter)
        match node.definition.operator:
            case algebra.Filter(condition=condition):
                where = scope.condition(self._in_form(node, condition))
                columns = self._renamed(place, scope, lambda leaf: leaf)
                return self._single(node, place, scope, columns, [where])
            case algebra.Select(items=items):
                values = {name: self._in_form(node, value) for name, value in items}
                columns = self._renamed(place, scope, lambda leaf: values[leaf.name])
                return self._single(node, place, scope, columns, [])
            case algebra.Union():
                return " UNION ALL ".join(self._branch(place, at) for at in node.inputs)
            case algebra.Next() as operator:
                return self._next(node, place, scope, operator)
            case _:
                raise AssertionError("refused before")

    def _renamed(
        self, place: int, scope: SqlScope, value_of: Callable[[algebra.Attribute], algebra.Value]
    ) -> list[str]:
        def leaf(value: algebra.Value) -> algebra.Value:
            return value_of(value) if isinstance(value, algebra.Attribute) else value

        found = []
        for (item, form), name in self._relations[place].columns.items():
            changed = algebra.map_leaves(item, leaf)
            text = scope.condition(changed) if isinstance(changed, algebra.TextTest) else scope.value(changed, form)
            found.append(f"{text} AS {name}")
        return found

    def _own(self, place: int, at: int) -> list[str]:
        below = self._relations[at].own
        lacking = {name: f"CAST(NULL AS BIGINT) AS {name}" for name in self._relations[place].own} | {"q": "p.q"}
        return [f"l.{name}" if name in below else lacking[name] for name in self._relations[place].own]

    def _single(self, node: FormNode, place: int, scope: SqlScope, columns: Iterable[str], where: Iterable[str]) -> str:
        sources, joins = self._sources(node, scope, self._relations[place].has_q)
        return _select([*self._own(place, node.inputs[0]), *columns], sources, [*joins, *where])

    def _branch(self, place: int, at: int) -> str:
        relation = self._relations[place]
        columns = [f"l.{self._column(at, derived)} AS {name}" for derived, name in relation.columns.items()]
        sources = [f"n{at} l", *(["p"] if relation.has_q and not self._relations[at].has_q else [])]
        return _select([*self._own(place, at), *columns], sources, [])

    def _next(self, node: FormNode, place: int, scope: SqlScope, operator: algebra.Next) -> str:
        """The SQL of NEXT: for each left event, the pairs with the least t1 of the right one; of LATEST BEFORE: for
        each right event, those with the greatest t1 of the left one."""
        relation, is_latest = self._relations[place], isinstance(operator, algebra.Latest)
        names = zip(operator.names, operator.schema, strict=True)
        of = {name: algebra.Attribute(part, source, kind) for (part, source), (name, kind) in names}
        where = ["r.t0 > l.t1", scope.condition(self._in_form(node, operator.condition))]
        columns = self._renamed(place, scope, lambda leaf: of[leaf.name])
        inside = ["place = 1"]
        if is_latest:
            scope.uses_parameters = True
            where.append("l.f1 > p.since")
        if node.window >= 0:
            span, bound = ("t1 - t0", "w") if is_latest else ("r.t1 - l.t0", scope.window(node.window))
            (inside if is_latest else where).append(f"{span} <= {bound}")
        left, right = (self._relations[at] for at in node.inputs)
        sources, joins = self._sources(node, scope, relation.has_q)
        q = ["l.q" if left.has_q else "r.q" if right.has_q else "p.q"] if relation.has_q else []
        events = [f"l.k{at}" for at in range(left.events)]
        one, its, order = (right, "r", "l.t1 DESC") if is_latest else (left, "l", "r.t1")
        same = [*q, *(f"{its}.k{at}" for at in range(one.events))]
        same += [f"{its}.{name}" for name in ("t0", "t1", *one.columns.values())] * one.is_forked
        events += [f"r.k{at}" for at in range(right.events)]
        found = [f"{one} AS q" for one in q] + ["l.t0 AS t0", "r.t1 AS t1", "l.f1 AS f1"]
        found += [f"{one} AS k{at}" for at, one in enumerate(events)]
        found.append(f"rank() OVER (PARTITION BY {', '.join(same)} ORDER BY {order}) AS place")
        found += [f"{scope.window(node.window)} AS w"] * (is_latest and node.window >= 0)
        pairs = _select([*found, *columns], sources, [*joins, *where])
        return _select([*relation.own, *relation.columns.values()], [f"({pairs}) pairs"], inside)

    def _sources(self, node: FormNode, scope: SqlScope, has_q: bool) -> tuple[list[str], list[str]]:
        sides = list(zip("lr", node.inputs, strict=False))
        sources = [f"n{at} {side}" for side, at in sides]
        of = [f"{side}.q" for side, at in sides if self._relations[at].has_q]
        if scope.uses_parameters or (has_q and not of):
            sources.append("p")
            of.append("p.q")
        return sources, [f"{one} = {of[0]}" for one in of[1:]]


def _select(columns: Iterable[str], sources: Iterable[str], where: Iterable[str]) -> str:
    conditions = " AND ".join(one for one in where if one != "TRUE")
    return f"SELECT {', '.join(columns)} FROM {', '.join(sources)}" + (conditions and f" WHERE {conditions}")


def _table(
    own: Mapping[str, Any], derived: Mapping[DerivedColumn, str], schema: algebra.Schema, pairs: Pairs, texts: Texts
) -> pa.Table:
    columns = {name: pa.array(column, pa.int64()) for name, column in own.items()}
    return pa.table(columns | {name: _derived(one, schema, pairs, texts) for one, name in derived.items()})


def _derived(derived: DerivedColumn, schema: algebra.Schema, pairs: Pairs, texts: Texts) -> pa.Array:
    item, form = derived
    if isinstance(item, algebra.TextTest):
        return pa.array(compile_condition(item, schema, None, texts)(pairs))
    if form == "number":
        column = compile_value(numeric(item), schema, None, texts)(pairs)
        return pa.array(column, pa.float64(), mask=np.isnan(column))
    value = item if algebra.value_kind(item) == "string" else algebra.Function("concat", (item,), "string")
    codes: Ints = compile_value(value, schema, None, texts)(pairs).astype(np.int64)
    if form == "text":
        return pa.array(texts.texts(codes), pa.string())
    return pa.array(codes, pa.int64(), mask=codes == NULL_TEXT)


def results_of(asked: StatementQuestion, answer: pa.Table, schema: algebra.Schema, parts: Ints) -> tuple[Columns, Ints]:
    """Returns the results in an answer, and the statement row of each. `parts` has those of all events."""
    values: list[Column] = []
    for name, (_, kind) in zip(asked.outputs, schema, strict=True):
        if kind == "string":
            values.append(_ints(answer, name, NULL_TEXT))
        else:
            values.append(answer[name].fill_null(np.nan).to_numpy().astype(np.float64))
    nobody = np.concatenate([parts, np.full((1, parts.shape[1]), -1)])
    made = np.concatenate([nobody[_ints(answer, f"k{place}", -1)] for place in range(asked.events)], axis=1)
    return Columns(_ints(answer, "t0"), _ints(answer, "t1"), tuple(values), made), _ints(answer, "q")


def _ints(answer: pa.Table, name: str, null: int = 0) -> Ints:
    found: Ints = answer[name].fill_null(null).to_numpy().astype(np.int64)
    return found


def window_question(form: StatementForm, fixed: Constants, longest: int) -> StatementQuestion:
    """Returns the phase-1 query for a form with some constants fixed; `longest` is the longest window of its
    statements. The answer has the numbers `k` of the events that stay. Raises AsConstant if more constants must be
    fixed, NotSql if there is no query."""
    return _WindowQuestionBuilder(form, fixed, longest).question()


class _WindowQuestionBuilder(_Builder):
    def __init__(self, form: StatementForm, fixed: Constants, longest: int) -> None:
        super().__init__(form, fixed)
        self._node: FormNode = form.nodes[-1]
        pattern = self._node.definition.operator if self._node.definition is not None else None
        windows = match_windows(pattern) if isinstance(pattern, algebra.Pattern) else None
        if windows is None or not isinstance(pattern, algebra.Pattern):
            raise NotSql("no pattern whose windows say whether there is a match")
        self._pattern, self._windows = pattern, windows
        self._longest = longest if self._node.window >= 0 else None
        self._columns: dict[int, dict[DerivedColumn, str]] = {}

    def question(self) -> StatementQuestion:
        candidates = " UNION ALL ".join(self._candidates(at) for at in range(len(self._windows.roles)))
        sql = f"WITH c AS ({candidates}), s AS ({self._starts()}) {self._kept()}"
        sources = []
        for place in dict.fromkeys(map(self._source, self._windows.roles)):
            node = self._form.nodes[place]
            sources.append(SourceTable(f"e{place}", node.stream, node.schema, self._columns.get(place, {})))
        return StatementQuestion(sql, tuple(sources), self._parameters)

    # ------------------------------------------------------------ filter and partition

    def _candidates(self, at: int) -> str:
        """The events that may have a role, judged alone. `one` counts each event once in its windows."""
        role, place = self._windows.roles[at], self._source(self._windows.roles[at])
        scope = SqlScope([place], self._column, self._parameter)
        zero = algebra.Constant(0.0)
        of_keys = [algebra.Arithmetic("+", key, zero) if key.kind == "number" else key for key in role.keys]  # -0 = 0
        keys = [scope.value(key, native_form(algebra.value_kind(key))) for key in of_keys]
        # A match may be one event, which no equality then compares with another, so that its keys may be NULL.
        is_alone = self._windows.firsts == [at]
        where = [f"{key} IS NOT NULL" for key in keys if not is_alone] + self._conditions(role, scope)
        if self._longest is not None:
            where.append(f"l.t1 - l.t0 <= {scope.window(self._node.window)}")
        before = [
            " AND ".join(self._conditions(other, scope)) or "TRUE"
            for other in self._windows.roles[:at]
            if self._source(other) == place and other.keys == role.keys and other.unit != "absent"
        ]
        counts = f"CASE WHEN {' OR '.join(f'({one})' for one in before)} THEN 0 ELSE 1 END" if before else "1"
        found = ["p.q AS q", "l.k AS k", "l.t0 AS t0", "l.t1 AS t1"]
        found += [f"{key} AS g{number}" for number, key in enumerate(keys)]
        found += [f"{at} AS r", f"{'0' if role.unit == 'absent' else counts} AS one"]
        if self._longest is not None:
            found.append(f"{scope.window(self._node.window)} AS w")
        return f"SELECT {', '.join(found)} FROM e{place} l, p WHERE {' AND '.join(where) or 'TRUE'}"

    def _conditions(self, role: MatchRole, scope: SqlScope) -> list[str]:
        found = []
        for one in role.conditions:
            with suppress(NotSql):  # then less is left out
                found.append(scope.condition(self._in_form(self._node, one)))
        return found

    def _source(self, role: MatchRole) -> int:
        return self._node.inputs[int(self._pattern.variables[role.variable].source.stream)]

    def _column(self, place: int, derived: DerivedColumn) -> str:
        columns = self._columns.setdefault(place, {})
        return columns.setdefault(derived, f"c{len(columns)}")

    # ------------------------------------------------------------ necessary conditions

    def _starts(self) -> str:
        windows = self._windows
        first = [at for at in windows.firsts if windows.groups[at] == 0]
        holds = [f"r IN ({', '.join(map(str, first))})", f"n >= {len(windows.firsts)}"]
        inside = "" if self._longest is None else " <= t0 + w"
        holds += [f"b{at}{inside or ' IS NOT NULL'}" for at in windows.firsts]
        holds += [f"b{one} < d{other}" for one, other in windows.in_order()]
        seen = ["sum(one) OVER ahead AS n"]
        seen += [f"min(CASE WHEN r = {at} THEN t1 END) OVER ahead AS b{at}" for at in windows.firsts]
        behind = sorted({other for _, other in windows.in_order()})
        seen += [f"max(CASE WHEN r = {at} THEN t0 END) OVER ahead AS d{at}" for at in behind]
        until = "UNBOUNDED" if self._longest is None else self._longest
        frame = f"{self._order()} RANGE BETWEEN CURRENT ROW AND {until} FOLLOWING"
        return (
            f"SELECT *, CASE WHEN {' AND '.join(holds)} THEN t0 END AS s "
            f"FROM (SELECT *, {', '.join(seen)} FROM c WINDOW ahead AS ({frame})) v"
        )

    def _kept(self) -> str:
        """The candidates in windows of such starts. Events that must not precede a match may lie before its window."""
        latest, next_one = ("latest IS NOT NULL", "coming IS NOT NULL")
        if self._longest is not None:
            latest, next_one = "latest >= t1 - w", "coming <= t0 + w"
        roles = zip(self._windows.roles, self._windows.groups, strict=True)
        leading = [str(at) for at, (role, group) in enumerate(roles) if role.unit == "absent" and group == 0]
        kept, seen = latest, ["max(s) OVER behind AS latest"]
        named = [f"behind AS ({self._order()} RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"]
        if leading:
            kept = f"({latest} OR (r IN ({', '.join(leading)}) AND {next_one}))"
            seen.append("min(s) OVER onwards AS coming")
            named.append(f"onwards AS ({self._order()} RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)")
        return f"SELECT DISTINCT k FROM (SELECT *, {', '.join(seen)} FROM s WINDOW {', '.join(named)}) u WHERE {kept}"

    def _order(self) -> str:
        keys = [f"g{number}" for number in range(len(self._windows.roles[0].keys))]
        return f"PARTITION BY {', '.join(['q', *keys])} ORDER BY t0"


Ask = Callable[[str, Mapping[str, pa.Table]], pa.Table]  # answers a query over named tables
NewKernel = Callable[[Texts, Lineage], Kernel]


def runs_as_sql(stream: algebra.Statement) -> TypeGuard[algebra.Stream]:
    """Returns whether a statement runs as SQL: no PATTERN, FOLD or AGGREGATE, and its conditions on several events use
    only arithmetic, `coalesce` and substring tests."""
    if isinstance(stream, algebra.Pattern | algebra.NearPattern):
        return False
    try:
        fixed_constants(StatementForms().form(stream)[0], question)
    except NotSql:
        return False
    return True


def has_match_windows(statement: algebra.Statement) -> TypeGuard[algebra.Pattern]:
    """Returns whether a statement is matched in two phases: a PATTERN whose strategy skips events."""
    return isinstance(statement, algebra.Pattern) and match_windows(statement) is not None


class ReplayKernel(Kernel):
    """A kernel for a single interval, after which it is empty. A database query starts once all its streams are there;
    statements that read the same streams share one."""

    def __init__(
        self, texts: Texts, lineage: Lineage, ask: Ask, matching: NewKernel, *, limits: Quota = UNLIMITED
    ) -> None:
        """`ask` queries a database, `matching` creates the kernel for its windows; `limits` are of what runs here."""
        super().__init__(texts, lineage, limits=limits)
        self._ask, self._matching = ask, matching
        self._asked: dict[int, tuple[algebra.Stream | algebra.Pattern, Micros]] = {}
        self._fed: dict[str, Columns] = {}
        self._ended = False

    def add(self, statement: int, stream: algebra.Statement, since: Micros) -> None:
        """Adds a statement before the interval. It sees events whose first part has a t1 after `since`."""
        if runs_as_sql(stream) or has_match_windows(stream):
            self._asked[statement] = stream, since
        else:
            super().add(statement, stream, since)

    def narrow(self, statement: int, since: Micros) -> None:
        """Raises `since` of a statement, before the interval."""
        if statement in self._asked:
            self._asked[statement] = self._asked[statement][0], since
        else:
            super().narrow(statement, since)

    def remove(self, statements: Sequence[int]) -> None:
        others = [number for number in statements if self._asked.pop(number, None) is None]
        for number in statements:
            self.exceeded.pop(number, None)
        if others:
            super().remove(others)

    def begin(self, until: int) -> None:
        """Begins an interval that ends before `until`. Raises RuntimeError after an earlier interval with events."""
        if self._ended:
            raise RuntimeError("a replay has one interval with events, which has all of them")
        self._fed, self._waiting = {}, dict(self._asked)
        super().begin(until)

    def feed(self, events: Mapping[str, Columns]) -> list[Results]:
        """Takes all events of some streams. Returns the results of statements whose streams are now complete."""
        self._fed |= events
        found = super().feed(events)
        fed, waiting = self._fed.keys(), self._waiting.items()
        ready = [number for number, (stream, _) in waiting if algebra.read_by(stream).keys() <= fed]
        return found + self._answers(ready)

    def end(self) -> list[Results]:
        """Ends the interval: missing streams had no events."""
        found = super().end() + self._answers(list(self._waiting))
        self._ended = any(map(len, self._fed.values()))
        self._fed = {}
        return found

    # ------------------------------------------------------------ the database

    def _answers(self, numbers: Sequence[int]) -> list[Results]:
        asked = [(number, *self._waiting.pop(number)) for number in numbers]
        patterns = [one for one in asked if isinstance(one[1], algebra.Pattern)]
        whole = alike_statements([one for one in asked if not isinstance(one[1], algebra.Pattern)], question)
        windowed = alike_statements(patterns, lambda form, fixed: window_question(form, fixed, 0))
        found = []
        for alike in whole:
            query = question(alike.form, alike.fixed)
            given = query.events_in(self._fed)
            answer = self._ask(query.sql, query.tables(alike, given, self.texts))
            places = max(one.parts.shape[1] for one in given)
            parts = np.concatenate([padded(one, places).parts for one in given])
            made, rows = results_of(query, answer, alike.form.schema, parts)
            if len(made):
                flow = each_once(sorted_flow(made, np.arange(len(made)), np.array(alike.numbers, np.int64)[rows]))
                found.append(Results(alike.form.schema, flow))
        return found + [one for alike in windowed for one in self._matched(alike)]

    def _matched(self, alike: QuestionGroup) -> list[Results]:
        """Returns the matches in windows that may have one."""
        asked = window_question(alike.form, alike.fixed, max(chain.from_iterable(alike.windows), default=0))
        given = asked.events_in(self._fed)
        if not any(map(len, given)):
            return []
        starts = np.cumsum([0, *map(len, given)])
        kept = np.sort(self._ask(asked.sql, asked.tables(alike, given, self.texts))["k"].to_numpy())
        places = np.split(kept, np.searchsorted(kept, starts[1:-1]))
        left = {
            source.stream: some.take(of - first)
            for source, some, of, first in zip(asked.sources, given, places, starts.tolist(), strict=False)
        }
        matcher = self._matching(self.texts, self._lineage)
        for number, since in zip(alike.numbers, alike.since, strict=True):
            matcher.add(number, self._asked[number][0], since)
        found = matcher.run(left, self._until)
        self.exceeded |= matcher.exceeded
        return found


def ask_duckdb(
    sql: str, tables: Mapping[str, pa.Table], set_up: Callable[[duckdb.DuckDBPyConnection], object] = lambda db: None
) -> pa.Table:
    """`Ask` of an in-memory DuckDB."""
    # By default a database in memory spills into the working directory, which is the user's.
    with TemporaryDirectory(prefix="mmqjp-") as spilled, duckdb.connect(config={"temp_directory": spilled}) as db:
        set_up(db)
        for name, table in tables.items():
            db.register(name, table)
        return db.sql(sql).to_arrow_table()


def asking_spark(session: SparkSession) -> Ask:
    """`Ask` of Spark, in a session of its own: the views of one session are not those of another."""
    own = session.newSession()
    own.conf.set("spark.sql.shuffle.partitions", session.sparkContext.defaultParallelism)

    def ask(sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        for name, table in tables.items():
            own.createDataFrame(table.combine_chunks()).createOrReplaceTempView(name)
        try:
            return own.sql(sql).toArrow()
        finally:
            for name in tables:
                own.catalog.dropTempView(name)

    return ask

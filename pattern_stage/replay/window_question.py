"""Phase 1 of match windows as one question in SQL: which events lie in a window that may have a match.

A row for each event and role (filter), parted by statement and keys, sees all rows of the window behind it: how many
events there are, and of each first event of a variable where its first candidate ends and its last one begins. That
says of each event of the first group whether a match may begin with it; and an event stays if it lies in the window of
such a one. See `pattern_stage.matching.match_windows`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pattern_stage.definition import Form, Node
from pattern_stage.formula import rewritten_condition
from pattern_stage.matching.match_windows import MatchWindows, Role, match_windows
from pattern_stage.predicates import kind_of
from pattern_stage.replay.alike import Constants
from pattern_stage.replay.question import SourceTable
from pattern_stage.replay.scope import Derived, NotSql, Place, Scope, plain
from xscl.algebra.event_sequences import Pattern
from xscl.algebra.events import Arithmetic, Attribute, Condition, Constant, Parameter, Value


@dataclass(frozen=True, slots=True)
class WindowQuestion:
    """A question about all statements of a form, and the tables that it is over: those of a
    `pattern_stage.replay.question.Question`. The answer has the numbers of the events that stay as `k`."""

    sql: str
    sources: tuple[SourceTable, ...]
    parameters: Mapping[Derived, str]


def window_question(form: Form, fixed: Constants, longest: int) -> WindowQuestion:
    """Returns the question for a form in which some constants are known, and the longest window of its statements.

    Raises:
        AsConstant: if more constants have to be known.
        NotSql: if there is none.
    """
    return _Questioner(form, fixed, longest).question()


class _Questioner:
    def __init__(self, form: Form, fixed: Constants, longest: int) -> None:
        self._form, self._fixed = form, fixed
        self._node: Node = form.nodes[-1]
        pattern = self._node.definition.operator if self._node.definition is not None else None
        windows = match_windows(pattern) if isinstance(pattern, Pattern) else None
        if windows is None or not isinstance(pattern, Pattern):
            raise NotSql("no pattern whose windows say whether there is a match")
        self._pattern: Pattern = pattern
        self._windows: MatchWindows = windows
        self._longest = longest if self._node.window >= 0 else None
        self._columns: dict[Place, dict[Derived, str]] = {}
        self._parameters: dict[Derived, str] = {}

    def question(self) -> WindowQuestion:
        candidates = " UNION ALL ".join(self._candidates(at) for at in range(len(self._windows.roles)))
        sql = f"WITH c AS ({candidates}), s AS ({self._starts()}) {self._kept()}"
        sources = []
        for place in dict.fromkeys(map(self._source, self._windows.roles)):
            node = self._form.nodes[place]
            sources.append(SourceTable(f"e{place}", node.stream, node.schema, self._columns.get(place, {})))
        return WindowQuestion(sql, tuple(sources), self._parameters)

    # ------------------------------------------------------------ filter and partition

    def _candidates(self, at: int) -> str:
        """The events that may have a role, by what they are alone. `one` counts each event once in its windows."""
        role, place = self._windows.roles[at], self._source(self._windows.roles[at])
        scope = Scope([place], self._column, self._parameter)
        keys = [scope.value(_key(key), plain(key.kind)) for key in role.keys]
        where = [f"{key} IS NOT NULL" for key in keys] + self._conditions(role, scope)
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

    def _conditions(self, role: Role, scope: Scope) -> list[str]:
        return list(self._asked(role.conditions, scope))

    def _asked(self, conditions: Sequence[Condition], scope: Scope) -> Iterator[str]:
        for one in conditions:
            try:
                yield scope.condition(rewritten_condition(one, self._leaf))
            except NotSql:
                continue  # less is left out

    def _leaf(self, leaf: Value) -> Value:
        if not isinstance(leaf, Parameter):
            return leaf
        slot = self._node.slots[leaf.index]
        return Constant(self._fixed[slot]) if slot in self._fixed else Parameter(slot, leaf.kind)

    def _source(self, role: Role) -> Place:
        return self._node.inputs[int(self._pattern.variables[role.variable].source.stream)]

    def _column(self, place: Place, derived: Derived) -> str:
        columns = self._columns.setdefault(place, {})
        return columns.setdefault(derived, f"c{len(columns)}")

    def _parameter(self, derived: Derived) -> str:
        return self._parameters.setdefault(derived, f"s{len(self._parameters)}")

    # ------------------------------------------------------------ necessary conditions

    def _starts(self) -> str:
        """All candidates, with their t0 as `s` if a match may begin with them."""
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
        """The candidates in windows of such starts. What must not come before a match may lie before its window."""
        latest, next_one = ("latest IS NOT NULL", "coming IS NOT NULL")
        if self._longest is not None:
            latest, next_one = "latest >= t1 - w", "coming <= t0 + w"
        leading = [
            str(at)
            for at, role in enumerate(self._windows.roles)
            if role.unit == "absent" and self._windows.groups[at] == 0
        ]
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


def _key(key: Attribute) -> Value:
    """Returns a key: equal numbers as equal ones, as -0 is 0."""
    return Arithmetic("+", key, Constant(0.0)) if kind_of(key) == "number" else key

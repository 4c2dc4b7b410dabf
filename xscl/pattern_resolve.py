"""Resolves PATTERN statements without ERRORS: the syntax tree becomes what `xscl.algebra.event_sequences` defines."""

from __future__ import annotations

from difflib import get_close_matches

from xscl.algebra.event_sequences import Conjunct, Names, NearPattern, OfItem, Pattern, Returned, Strategy, Variable
from xscl.algebra.events import ALWAYS, Attribute, Condition, Value
from xscl.algebra.expressions import Span
from xscl.event_constants import kind_of
from xscl.event_expressions import Alike, Both, EventExpr
from xscl.event_forms import MAX_CLAUSES, all_of, clauses_of, parts_of
from xscl.event_syntax import AllAttributes, EventQuery, Named
from xscl.near_resolve import NearResolver
from xscl.pattern_conjuncts import clashing, conjuncts_of, in_order, mentioned, renamed, renamed_condition
from xscl.pattern_syntax import AnyOrder, Component, NoEvent, OneEvent, Sequenced, StrategyName
from xscl.pattern_values import Declared

MAX_COMPONENTS = 32
"""How many components a pattern may have."""

STRATEGIES: dict[str, Strategy] = {
    "strict_contiguity": "strict",
    "partition_contiguity": "partition",
    "skip_till_next_match": "next",
    "skip_till_any_match": "any",
}


class PatternResolver(NearResolver):
    """Resolves one PATTERN statement."""

    def pattern(self, query: EventQuery, body: Sequenced) -> Pattern | NearPattern | None:
        """What the statement means, or None if something is wrong with it."""
        if body.errors is not None:
            return self.near(query, body, body.errors)
        variables = self._variables(body)
        if variables is None:
            return None
        keys, conjuncts, kills = self._where(body, variables)
        strategy = self._strategy(body, variables, keys)
        having, having_names = self._having(body.having)
        returned = None if query.select is None else self._returned(query.select)
        within = self.window(query, body)
        schema = tuple((item.name, kind_of(item.value)) for item in returned or () if item.each is None)
        if query.select is not None and not self.is_schema(schema, "RETURN", query.select[0].span):
            return None
        found = Pattern(
            variables, strategy, keys, conjuncts, kills, having, having_names, within, body.mode.maximal,
            body.mode.apart, None if returned is None else tuple(returned), schema,
        )  # fmt: skip
        if within is None and query.within is not None and found.is_late:
            late = "~ at the end" if variables[-1].negated else "EARLIEST MAXIMAL, with several events at the end,"
            hint = "write a window such as 14 d"
            self.problem(f"{late} is known when the window is over, and INF never is", query.within.span, hint)
        return None if self.problems else found

    # ------------------------------------------------------------ components

    def _variables(self, body: Sequenced) -> tuple[Variable, ...] | None:
        found: list[Variable] = []
        group = 0
        for component in body.components:
            match component:
                case NoEvent(component=inner, span=span):
                    if found and found[-1].negated:
                        hint = "write one of them, or a component between the two"
                        self.problem("two negated components are neighbours", span, hint)
                    if isinstance(inner, OneEvent) and inner.many:
                        hint = f"write ~({inner.stream.name} {inner.variable}): one event is enough to be there"
                        self.problem("a negated component is of one event", inner.span, hint)
                    else:
                        self._add(inner, group, found, negated=True)
                    continue
                case AnyOrder(components=members):
                    for member in members:
                        self._add(member, group, found)
                case _:
                    self._add(component, group, found)
            group += 1
        if group == 0 and found:
            hint = "write a component without ~ beside it"
            self.problem("all components are negated", body.span, hint)
        if len(found) > MAX_COMPONENTS:
            self.problem(f"more than {MAX_COMPONENTS} components", body.span, "PUBLISH a part, and read that stream")
        return None if self.problems else tuple(found)

    def _add(self, node: Component, group: int, found: list[Variable], *, negated: bool = False) -> None:
        """Adds the variable of a component."""
        if not isinstance(node, OneEvent):
            if isinstance(node, NoEvent | AnyOrder):
                inside = "~(...)" if negated else "SET"
                hint = f"{inside} takes streams with their variables, such as Post p"
                self.problem(f"this cannot be in {inside}", node.span, hint)
            else:
                hint = "write a stream and a variable, such as Post p; a pattern with ERRORS has letters"
                self.problem("a component without a variable", node.span, hint)
            return
        source = self.named(node.stream)
        if node.variable in self.variables:
            self.problem(f"two variables are named {node.variable}", node.span, "give one another name")
            return
        schema = () if source is None else source.schema
        self.variables[node.variable] = Declared(len(self.variables), schema, node.many, negated)
        if source is not None:
            found.append(Variable(node.variable, source, group, node.many, negated))

    # ------------------------------------------------------------ WHERE

    def _where(
        self, body: Sequenced, variables: tuple[Variable, ...]
    ) -> tuple[tuple[str, ...], tuple[Conjunct, ...], tuple[Conjunct, ...]]:
        """The attributes that are equal, the conjuncts, and those on negated variables."""
        keys: dict[str, None] = {}
        found: list[Condition] = []
        where = body.where
        for expr in where.args if isinstance(where, Both) else () if where is None else (where,):
            if isinstance(expr, Alike):
                for name in expr.names:
                    if self.is_key(name, {one.source.stream: one.source.schema for one in variables}):
                        keys[name.name] = None
                continue
            condition = self.condition(expr, self.scope("WHERE"))
            if condition is not None and self._is_testable(condition, expr, variables):
                found.append(condition)
        whole = all_of(*found)
        if where is not None and clauses_of(whole) > MAX_CLAUSES:
            message = f"this condition has more than {MAX_CLAUSES} clauses in disjunctive normal form"
            self.problem(message, where.span, "write it with fewer ORs")
            whole = ALWAYS
        negated = [number for number, one in enumerate(variables) if one.negated]
        conjuncts = list(conjuncts_of(whole, self.named_as, negated))
        tests = [one for one in conjuncts if one.variable not in negated]
        kills = [one for one in conjuncts if one.variable in negated]
        return tuple(keys), in_order(tests), in_order(kills)

    def _is_testable(self, condition: Condition, expr: EventExpr, variables: tuple[Variable, ...]) -> bool:
        """Whether a condition mentions one negated variable at most, and no `v[]` beside `v[i]`."""
        referents = mentioned(condition, self.named_as)
        negated = {one.variable for one in referents if variables[one.variable].negated}
        if len(negated) > 1:
            names = " and ".join(variables[number].name for number in sorted(negated))
            self.problem(f"a condition on {names}, both negated", expr.span, "write a condition on each of them")
            return False
        clash = clashing(referents)
        if clash is not None:
            name = variables[clash].name
            hint = f"write {name}[i] for each but the first, beside the one before; {name}[] is each by itself"
            self.problem(f"{name}[] beside {name}[i] or {name}[i-1]", expr.span, hint)
            return False
        return True

    # ------------------------------------------------------------ strategies

    def _strategy(self, body: Sequenced, variables: tuple[Variable, ...], keys: tuple[str, ...]) -> Strategy:
        has_sets = any(isinstance(component, AnyOrder) for component in body.components)
        free = "SET" if has_sets else "EARLIEST MAXIMAL" if body.mode.maximal else ""
        if body.strategy is None:
            many = next((one for one in variables if one.kleene), None)
            if many is not None and not free:
                hint = "write WHERE and " + ", ".join(STRATEGIES) + " in front of the braces"
                self.problem(f"{many.name}[] needs a strategy", body.span, hint)
            return "any"
        node = body.strategy
        strategy = STRATEGIES.get(node.name.lower())
        if strategy is None:
            close = get_close_matches(node.name.lower(), STRATEGIES, n=1)
            hint = f"did you mean {close[0]}?" if close else f"the strategies are {', '.join(STRATEGIES)}"
            self.problem(
                f"there is no strategy {node.name}", Span(node.span.start, node.span.start + len(node.name)), hint
            )
            return "any"
        self._check_listed(node)
        if free and strategy != "any":
            self.problem(f"{node.name} with {free}", node.span, "write skip_till_any_match, or leave it out")
        elif strategy == "partition" and not keys:
            hint = "write the attribute that says what belongs together, as in [product]"
            self.problem(f"{node.name} needs [attribute] in its braces", node.span, hint)
        return strategy

    def _check_listed(self, node: StrategyName) -> None:
        """The variables that stand behind a strategy: all, if any."""
        for listed in node.variables:
            variable = self.variable(listed.name, listed.span)
            if variable is None:
                continue
            if variable.negated:
                self.problem(f"{listed.name} is negated", listed.span, "leave it out here")
            elif variable.many != listed.many:
                right = f"{listed.name}[]" if variable.many else listed.name
                what = "has several events" if variable.many else "is one event"
                self.problem(f"{listed.name} {what}", listed.span, f"write {right}")
        names = {listed.name for listed in node.variables}
        missing = [name for name, one in self.variables.items() if not one.negated and name not in names]
        if names and missing:
            hint = "name all of them, or none: write the strategy alone"
            self.problem(f"a strategy holds for all variables, and {missing[0]} is missing", node.span, hint)

    # ------------------------------------------------------------ HAVING, RETURN

    def _having(self, expr: EventExpr | None) -> tuple[Condition, Names]:
        condition = self.tested(expr, self.scope("HAVING"))
        return (ALWAYS, ()) if condition is None else renamed_condition(condition, self.named_as)

    def _returned(self, select: tuple[Named | AllAttributes, ...]) -> list[Returned]:
        found: dict[str, Returned] = {}
        for item in select:
            if isinstance(item, AllAttributes):
                self.problem("there is no * in RETURN", item.span, "leave RETURN out, or write what to tell: a.x AS x")
                continue
            value = self.value(item.expr, self.scope("RETURN"))
            if value is not None and self.has_new_name(item, found):
                each = self._each(value, item.span)
                found[item.name] = Returned(item.name, *renamed(value, self.named_as), each)
        return list(found.values())

    def _each(self, value: Value, span: Span) -> int | None:
        """The variable for each event of which there is a value."""
        referents = [self.named_as[part.name] for part in parts_of(value) if isinstance(part, Attribute)]
        every = {one.variable for one in referents if isinstance(one, OfItem) and one.place == "every"}
        if len(every) > 1:
            self.problem("an item of two variables' events", span, "write an item for each of them")
        return min(every, default=None)

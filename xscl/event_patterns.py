"""Resolves PATTERN statements, with or without ERRORS: syntax trees in, patterns or problems out.

Each reference to a variable's event gets a name, and conditions refer to attributes by these names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xscl import event_forms as forms
from xscl import syntax
from xscl.algebra import events as algebra
from xscl.algebra.events import ALWAYS, ERRORS, EventCondition, Schema, Value, leaves, value_kind
from xscl.algebra.values import And, Call, Span, call_text
from xscl.event_forms import MAX_CLAUSES
from xscl.event_resolve import EventClause, Resolver, Schemas, Scope
from xscl.text import did_you_mean

_PLACES: dict[str, algebra.ItemPosition] = {"1": "first", "i": "each", "i-1": "previous", "LEN": "last", "[]": "every"}


MAX_LETTERS = 32  # maximum number of letters of a pattern, with those of `A{n,}` counted n times

MAX_COMPONENTS = 32  # maximum number of components of a pattern

STRATEGIES: dict[str, algebra.Strategy] = {
    "strict_contiguity": "strict",
    "partition_contiguity": "partition",
    "skip_till_next_match": "next",
    "skip_till_any_match": "any",
}


TOGETHER = "ALL MATCHES TOGETHER"

_Variables = tuple[algebra.Variable, ...]
_Conjuncts = tuple[algebra.WhereConjunct, ...]


@dataclass(frozen=True, slots=True)
class Declared:
    number: int
    schema: Schema
    many: bool = False
    negated: bool = False


def _is_of_whole(one: algebra.WhereConjunct) -> bool:
    """Whether a condition mentions other events of a match than the new one, the one before, first and last ones."""
    return any(
        not isinstance(of, algebra.OfItem)
        or (of.place in ("each", "previous", "every") and (of.variable != one.variable or one.phase == "complete"))
        for _, of in one.names
    )


class PatternResolver(Resolver):
    """Resolves patterns. Values and conditions are over `variables`, and their references get names."""

    def __init__(self, schemas: Schemas, documents: Sequence[str]) -> None:
        super().__init__(schemas, documents)
        self.variables: dict[str, Declared] = {}
        self.named_as: dict[str, algebra.Referent] = {}
        self._names: dict[algebra.Referent, str] = {}
        self._alike: tuple[str, ...] | None = None  # in HAVING and RETURN of ALL MATCHES TOGETHER, the keys

    def scope(self, operator: EventClause) -> Scope:
        def grouped(call: Call) -> Value | None:
            return self._of_items(call, operator) if self._alike is None else self._of_matches(call)

        return Scope(operator, (), grouped=grouped)

    def attribute_of(self, referent: algebra.Referent, kind: algebra.Kind) -> Value:
        name = self._names.setdefault(referent, f"@{len(self._names)}")
        self.named_as[name] = referent
        return algebra.Attribute("left", name, kind)

    # ------------------------------------------------------------ references

    def item(self, found: syntax.ItemReference, scope: Scope) -> Value | None:
        name = found.variable
        if scope.operator == "AGGREGATE":  # the arguments of an aggregate belong to one variable
            return self.attribute(found, "left", scope)
        if (variable := self.variable(name, found.span)) is None:
            return None
        if variable.negated and scope.operator != "WHERE":
            self.problem(f"{name} is negated", found.span, f"a match has no {name}; {scope.operator} reads its events")
        elif self._alike is not None:
            return self._of_all(found, variable)
        elif not variable.many and found.place:
            hint = f"write {name}.{found.name or 'x'}; several are {name}[], of a component A+ {name}[]"
            self.problem(f"{name} is one event", found.span, hint)
        elif not variable.many:
            return self._of_item(found, variable, "only")
        elif not found.place and found.name.upper() == "LEN":
            return self.attribute_of(algebra.Length(variable.number), "number")
        elif not found.place:
            ways = f"{name}[1].{found.name}, {name}[{name}.LEN].{found.name}, or {name}[].{found.name} for each"
            self.problem(f"{name} has several events", found.span, f"write {ways}")
        elif found.place == "..i-1" or not found.name:
            text = f"{name}[{'..i-1' if found.place == '..i-1' else ''}]"
            hint = f"write count({text}), or max({text}.{found.name or 'x'})"
            self.problem(f"{text} is only allowed in an aggregate", found.span, hint)
        elif found.place in ("i", "i-1") and scope.operator != "WHERE":
            hint = f"write {name}[1], {name}[{name}.LEN] or {name}[]"
            self.problem(f"{name}[{found.place}] belongs in WHERE", found.span, hint)
        else:
            return self._of_item(found, variable, _PLACES[found.place])
        return None

    def _of_all(self, found: syntax.ItemReference, variable: Declared) -> Value | None:
        """What all matches that end with an event have in common: its attributes, and the keys."""
        last = list(self.variables.values())[-1]
        is_last = variable is last and found.place == ("LEN" if last.many else "")
        if is_last or (found.name in (self._alike or ()) and (variable.many or not found.place)):
            return self._of_item(found, last, "last" if last.many else "only")
        text = f"{found.variable}{'[]' if variable.many else ''}{f'.{found.name}' if found.name else ''}"
        hint = f"write min({text}), max({text}), sum({text}) or avg({text})"
        if not found.name or found.name.upper() == "LEN":
            text, hint = (
                f"{found.variable}[]",
                f"count({found.variable}[]) counts events of all matches, count(*) matches",
            )
        return self.problem(f"{text} differs between the matches of one output", found.span, hint)

    def _of_item(self, found: syntax.ItemReference, variable: Declared, place: algebra.ItemPosition) -> Value | None:
        kinds = dict(variable.schema)
        if found.name in kinds:
            return self.attribute_of(algebra.OfItem(variable.number, place, found.name), kinds[found.name])
        return self.unknown(found.name, kinds, found.span, Scope("WHERE", variable.schema))

    def variable(self, name: str, span: Span) -> Declared | None:
        if name in self.variables:
            return self.variables[name]
        known = ", ".join(self.variables)
        hint = did_you_mean(name, self.variables) or (f"the variables are {known}" if known else "remove it")
        return self.problem(f"there is no variable {name}", span, hint)

    def reference(self, found: syntax.Reference, scope: Scope) -> Value | None:
        if (ERRORS, "number") in scope.left:
            if not found.side and found.name == ERRORS:
                return algebra.Attribute("left", ERRORS, "number")
            hint = "a pattern with ERRORS returns errors, and constants; its output document has all events"
            return self.problem(f"there is no {found.name} here", found.span, hint)
        if found.side:
            hint = f"write a variable: a.{found.name}"
            return self.problem(f"{found.side} belongs in NEXT or FOLD", found.span, hint)
        having = [name for name, one in self.variables.items() if found.name in dict(one.schema) and not one.negated]
        if found.name in self.variables:
            one = self.variables[found.name]
            example = f"{found.name}[1].x" if one.many else f"{found.name}.x"
            self.problem(f"{found.name} is a variable", found.span, f"write {example} for its attribute x")
        else:
            name = having[0] if having else next(iter(self.variables), "a")
            place = "[1]" if having and self.variables[name].many else ""
            self.problem(f"{found.name} is of no variable", found.span, f"write {name}{place}.{found.name}")
        return None

    def alike(self, found: syntax.EquivalenceTest) -> None:
        hint = "write it beside the other conditions of WHERE, with AND"
        self.problem("[...] is a condition on all events", found.span, hint)

    # ------------------------------------------------------------ aggregates

    def _of_items(self, call: Call, operator: EventClause) -> Value | None:
        if (found := self._items_of(call, f"v[]{'' if call.name == 'count' else '.x'}")) is None:
            return None
        items, variable = found
        first = items[0]
        for one in items:
            if (one.variable, one.place) != (first.variable, first.place) and one.place in ("[]", "..i-1"):
                return self.problem("an aggregate of two variables", one.span, f"write {first.variable} in both places")
            if one.place not in ("[]", "..i-1"):
                hint = f"write {one.variable}[].{one.name}"
                return self.problem("an aggregate is of v[] or of v[..i-1]", one.span, hint)
        if not variable.many:
            hint = f"write {first.variable}.{first.name or 'x'}"
            return self.problem(f"{first.variable} is one event", first.span, hint)
        if first.place == "..i-1" and operator != "WHERE":
            return self.problem(f"{first.variable}[..i-1] belongs in WHERE", first.span, f"write {first.variable}[]")
        if (aggregated := self._aggregated(call, items, variable)) is None:
            return None
        kind = value_kind(aggregated.args[0]) if aggregated.name == "argmax" else "number"
        return self.attribute_of(algebra.OfItems(variable.number, aggregated, first.place == "..i-1"), kind)

    def _of_matches(self, call: Call) -> Value | None:
        if call.name not in ("count", "sum", "avg", "min", "max"):
            hint = "write count, sum, avg, min or max; the others need the matches one by one: write ALL MATCHES"
            return self.problem(f"{call_text(call.name, ())} with ALL MATCHES TOGETHER", call.span, hint)
        if call.name == "count" and not call.args:
            return self.attribute_of(algebra.OfMatches(len(self.variables) - 1), "number")
        if (found := self._items_of(call, "v.x")) is None:
            return None
        items, variable = found
        first = items[0]
        for one in items:
            if one.variable != first.variable:
                return self.problem("an aggregate of two variables", one.span, f"write {first.variable} in both places")
            if one.place != ("[]" if variable.many else ""):
                hint = f"write {one.variable}{'[]' if variable.many else ''}.{one.name or 'x'}"
                return self.problem("an aggregate is of all events of a variable", one.span, hint)
        if (aggregated := self._aggregated(call, items, variable)) is None:
            return None
        return self.attribute_of(algebra.OfMatches(variable.number, aggregated), "number")

    def _items_of(self, call: Call, example: str) -> tuple[list[syntax.ItemReference], Declared] | None:
        """The references in an aggregate's arguments, and the variable of the first one."""
        items = list(forms.parts_of_kind(call.args, syntax.ItemReference))
        if not items:
            hint = f"write {call_text(call.name, [example])} with a variable {example.partition('.')[0]}"
            return self.problem(f"{call.name.partition(' ')[0]}() is of the events of a variable", call.span, hint)
        variable = self.variable(items[0].variable, items[0].span)
        return None if variable is None else (items, variable)

    def _aggregated(
        self, call: Call, items: Sequence[syntax.ItemReference], variable: Declared
    ) -> algebra.Aggregated | None:
        args: tuple[Value, ...] = ()
        given: tuple[syntax.EventExpr, ...] = call.args
        if not (call.name == "count" and given == (items[0],) and not items[0].name):
            if (nameless := next((one for one in items if not one.name), None)) is not None:
                hint = f"write {nameless.variable}[].x"
                return self.problem(f"{call_text(call.name, ())} is of an attribute", nameless.span, hint)
            if (found := self.arguments(call, Scope("AGGREGATE", variable.schema))) is None:
                return None
            args = found
        name: algebra.AggregateName = call.name  # type: ignore[assignment]  # AGGREGATES has no others
        return algebra.Aggregated(name, args)

    # ------------------------------------------------------------ nearly matching

    def near(
        self, query: syntax.EventQuery, body: syntax.Sequenced, errors: syntax.Errors
    ) -> algebra.NearPattern | None:
        letters = self._word(body.components)
        streams = {one.source.stream: one.source.schema for one in algebra.letters_of(letters)} if letters else {}
        keys, others = self._keys(body.where, streams)
        for expr in others:
            hint = "FILTER the streams, and read what that PUBLISHes; only [attribute] is allowed here"
            self.problem("a condition with ERRORS", expr.span, hint)
        if body.strategy is not None:
            self.problem("a strategy with ERRORS", body.strategy.span, "leave it out: events may lie in between")
        if body.having is not None:
            self.problem("HAVING with ERRORS", body.having.span, "FILTER what the pattern PUBLISHes")
        if body.mode.maximal:
            self.problem("EARLIEST MAXIMAL with ERRORS", body.mode.span, "leave it out, or write NON OVERLAPPING")
        if isinstance(body.mode, syntax.TogetherMode):
            self.problem(f"{TOGETHER} with ERRORS", body.mode.span, "AGGREGATE what the pattern PUBLISHes")
        within = self._window(query, body)
        returned = self._returned(query.select or (), Scope("RETURN", ((ERRORS, "number"),)), "errors")
        schema = tuple((name, value_kind(value)) for name, (value, _) in returned.items())
        if ERRORS not in returned:
            schema = (*schema, (ERRORS, "number"))
        if letters is not None:
            least = algebra.count_letters(letters, min, 0)
            if errors.most >= least:
                known = f"the shortest match without errors has {least} event{'s' if least != 1 else ''}"
                hint = f"write ERRORS <= {least - 1}, or less" if least else "write a letter that is always there"
                self.problem(f"{errors.most} errors are too many: {known}", errors.span, hint)
        if letters is None or self.problems:
            return None
        items = None if query.select is None else tuple((name, value) for name, (value, _) in returned.items())
        return algebra.NearPattern(letters, errors.most, errors.budget, keys, within, body.mode.apart, items, schema)

    def _window(self, query: syntax.EventQuery, body: syntax.Sequenced) -> int | None:
        if query.within is None:
            hint = "write WITHIN and a window after the conditions, such as WITHIN 7 d"
            return self.problem("a pattern needs a window", body.span, hint)
        return query.within.us

    def _is_key(self, name: syntax.Reference, streams: Mapping[str, Schema]) -> bool:
        """Whether all events have an attribute, of the same kind."""
        kinds: dict[str, str] = {}
        for stream, schema in streams.items():
            if (kind := dict(schema).get(name.name)) is None:
                self.unknown(name.name, dict(schema), name.span, Scope("WHERE", schema))
                self.problems[-1].message = f"{stream} has no attribute {name.name}, which all components need in [...]"
                return False
            kinds.setdefault(kind, stream)
        if len(kinds) > 1:
            message = f"{name.name} is a string of {kinds['string']}, and a number of {kinds['number']}"
            self.problem(message, name.span, "make them one kind where the events are defined: number(...)")
            return False
        return True

    # ------------------------------------------------------------ letters

    def _word(self, components: tuple[syntax.Component, ...]) -> algebra.Letters | None:
        parts = [self._letters(component) for component in components]
        known = tuple(part for part in parts if part is not None)
        if len(known) < len(parts):
            return None
        word = known[0] if len(known) == 1 else algebra.Word(known)
        if algebra.count_letters(word, sum, 1) > MAX_LETTERS:
            hint = "PUBLISH a part, and read that stream"
            return self.problem(f"more than {MAX_LETTERS} letters", components[0].span, hint)
        return word

    def _letters(self, node: syntax.Component) -> algebra.Letters | None:
        match node:
            case syntax.LetterOf(stream=stream, needed=needed):
                source = self.named(stream)
                return None if source is None else algebra.Letter(source, needed)
            case syntax.Alternatives(words=words):
                found = [self._word(word) for word in words]
                known = tuple(word for word in found if word is not None)
                if len(known) < len(found):
                    return None
                return known[0] if len(known) == 1 else algebra.OneOf(known)
            case syntax.Repetition(part=part, least=least):
                if least > MAX_LETTERS:
                    return self.problem(f"more than {MAX_LETTERS} letters", node.span, "repeat it less often")
                inner = self._letters(part)
                return None if inner is None else algebra.Repeated(inner, least)
        hint = "write streams alone: a pattern with ERRORS has no variables, no ~ and no SET"
        return self.problem("this is not a letter", node.span, hint)

    def _keys(
        self, where: syntax.EventExpr | None, streams: Mapping[str, Schema]
    ) -> tuple[tuple[str, ...], list[syntax.EventExpr]]:
        """The attributes in brackets, and the other conditions of WHERE."""
        keys: dict[str, None] = {}
        others: list[syntax.EventExpr] = []
        for expr in where.args if isinstance(where, And) else () if where is None else (where,):
            if isinstance(expr, syntax.EquivalenceTest):
                keys.update(dict.fromkeys(name.name for name in expr.names if self._is_key(name, streams)))
            else:
                others.append(expr)
        return tuple(keys), others

    def _returned(self, select: syntax.EventItems, scope: Scope, example: str) -> dict[str, tuple[Value, Span]]:
        found: dict[str, Value] = {}
        for item in select:
            if isinstance(item, syntax.SelectStar):
                self.problem("there is no * in RETURN", item.span, f"leave RETURN out, or write {example}")
            else:
                self.add_item(item, scope, found)
        spans = {item.name: item.span for item in select if isinstance(item, syntax.Named)}
        return {name: (value, spans[name]) for name, value in found.items()}

    # ------------------------------------------------------------ patterns

    def pattern(self, query: syntax.EventQuery, body: syntax.Sequenced) -> algebra.Pattern | algebra.NearPattern | None:
        if body.errors is not None:
            return self.near(query, body, body.errors)
        if (variables := self._variables(body)) is None:
            return None
        keys, conjuncts, kills = self._where(body, variables)
        strategy = self._strategy(body, variables, keys)
        if isinstance(body.mode, syntax.TogetherMode):
            self._check_together(query, body, variables)
            self._alike = keys
        having = self.tested(body.having, self.scope("HAVING"))
        items = self._returned(query.select or (), self.scope("RETURN"), "what to return: a.x AS x")
        returned = [
            algebra.Returned(name, *forms.number_references(value, self.named_as), self._each(value, span))
            for name, (value, span) in items.items()
        ]
        within = self._window(query, body)
        schema: Schema = tuple(
            (item.name, "string" if algebra.is_exact(item) else value_kind(item.value))
            for item in returned
            if item.each is None
        )
        if query.select is not None and not self.is_schema(schema, "RETURN", query.select[0].span):
            return None
        found = (algebra.Pattern if self._alike is None else algebra.Together)(
            variables, strategy, keys, conjuncts, kills, *forms.number_references(having or ALWAYS, self.named_as),
            within, body.mode.maximal, body.mode.apart, None if query.select is None else tuple(returned), schema,
        )  # fmt: skip
        if within is None and query.within is not None and found.is_late:
            late = "~ at the end" if variables[-1].negated else "EARLIEST MAXIMAL, with several events at the end,"
            hint = "write a window such as 14 d"
            self.problem(f"{late} is known when the window is over, and INF never is", query.within.span, hint)
        return None if self.problems else found

    def _check_together(self, query: syntax.EventQuery, body: syntax.Sequenced, variables: _Variables) -> None:
        span = body.mode.span
        for component in body.components:
            if isinstance(component, syntax.NoEvent | syntax.AnyOrder):
                what = "~" if isinstance(component, syntax.NoEvent) else "SET"
                hint = f"leave {what} out, or write ALL MATCHES and AGGREGATE what the pattern PUBLISHes"
                self.problem(f"{what} with {TOGETHER}", component.span, hint)
        if query.select is None:
            hint = "write RETURN count(*) AS n in front of it, or sum, avg, min, max of a variable's events"
            self.problem(f"{TOGETHER} needs RETURN", span, hint)
        where = body.where
        for expr in where.args if isinstance(where, And) else () if where is None else (where,):
            if isinstance(expr, syntax.EquivalenceTest):
                continue
            problems = len(self.problems)
            condition = self.condition(expr, self.scope("WHERE"))
            del self.problems[problems:]  # they are known
            if condition is not None and any(map(_is_of_whole, forms.conjuncts_of(condition, self.named_as, ()))):
                hint = "compare v[i] with v[i-1] or v[1], or events of two variables, of v[] the first or the last"
                message = f"this condition needs the events of each match, and {TOGETHER} makes no matches"
                self.problem(message, expr.span, hint)

    # ------------------------------------------------------------ components

    def _variables(self, body: syntax.Sequenced) -> _Variables | None:
        found: list[algebra.Variable] = []
        group = 0
        for component in body.components:
            match component:
                case syntax.NoEvent(component=inner, span=span):
                    if found and found[-1].negated:
                        hint = "write one of them, or a component between the two"
                        self.problem("two negated components are neighbours", span, hint)
                    if isinstance(inner, syntax.OneEvent) and inner.many:
                        hint = f"write ~({inner.stream.name} {inner.variable}): one event is enough to be there"
                        self.problem("a negated component is of one event", inner.span, hint)
                    else:
                        self._add(inner, group, found, negated=True)
                    continue
                case syntax.AnyOrder(components=members):
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

    def _add(self, node: syntax.Component, group: int, found: list[algebra.Variable], *, negated: bool = False) -> None:
        if not isinstance(node, syntax.OneEvent):
            if isinstance(node, syntax.NoEvent | syntax.AnyOrder):
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
            found.append(algebra.Variable(node.variable, source, group, node.many, negated))

    # ------------------------------------------------------------ WHERE

    def _where(self, body: syntax.Sequenced, variables: _Variables) -> tuple[tuple[str, ...], _Conjuncts, _Conjuncts]:
        found: list[EventCondition] = []
        where = body.where
        keys, others = self._keys(where, {one.source.stream: one.source.schema for one in variables})
        for expr in others:
            condition = self.condition(expr, self.scope("WHERE"))
            if condition is not None and self._is_testable(condition, expr, variables):
                found.append(condition)
        whole = forms.all_of(*found)
        if where is not None and forms.count_dnf_clauses(whole) > MAX_CLAUSES:
            message = f"this condition has more than {MAX_CLAUSES} clauses in disjunctive normal form"
            self.problem(message, where.span, "write it with fewer ORs")
            whole = ALWAYS
        negated = [number for number, one in enumerate(variables) if one.negated]
        conjuncts = list(forms.conjuncts_of(whole, self.named_as, negated))
        tests = [one for one in conjuncts if one.variable not in negated]
        kills = [one for one in conjuncts if one.variable in negated]
        return keys, forms.sort_conjuncts(tests), forms.sort_conjuncts(kills)

    def _is_testable(self, condition: EventCondition, expr: syntax.EventExpr, variables: _Variables) -> bool:
        """Whether a condition mentions at most one negated variable, and no `v[]` beside `v[i]`."""
        referents = forms.mentioned(condition, self.named_as)
        negated = {one.variable for one in referents if variables[one.variable].negated}
        if len(negated) > 1:
            names = " and ".join(variables[number].name for number in sorted(negated))
            self.problem(f"a condition on {names}, both negated", expr.span, "write a condition on each of them")
            return False
        if (clash := forms.clashing(referents)) is not None:
            name = variables[clash].name
            hint = f"write {name}[i] for each but the first, beside the one before; {name}[] is each by itself"
            self.problem(f"{name}[] beside {name}[i] or {name}[i-1]", expr.span, hint)
            return False
        return True

    # ------------------------------------------------------------ strategies

    def _strategy(self, body: syntax.Sequenced, variables: _Variables, keys: tuple[str, ...]) -> algebra.Strategy:
        has_sets = any(isinstance(component, syntax.AnyOrder) for component in body.components)
        free = "SET" if has_sets else "EARLIEST MAXIMAL" if body.mode.maximal else ""
        free = free or TOGETHER * isinstance(body.mode, syntax.TogetherMode)
        if body.strategy is None:
            many = next((one for one in variables if one.kleene), None)
            if many is not None and not free:
                hint = "write WHERE and " + ", ".join(STRATEGIES) + " in front of the braces"
                self.problem(f"{many.name}[] needs a strategy", body.span, hint)
            return "any"
        node = body.strategy
        if (strategy := STRATEGIES.get(node.name.lower())) is None:
            hint = did_you_mean(node.name.lower(), STRATEGIES) or f"the strategies are {', '.join(STRATEGIES)}"
            span = Span(node.span.start, node.span.start + len(node.name))
            self.problem(f"there is no strategy {node.name}", span, hint)
            return "any"
        self._check_listed(node)
        if free and strategy != "any":
            self.problem(f"{node.name} with {free}", node.span, "write skip_till_any_match, or leave it out")
        elif strategy == "partition" and not keys:
            hint = "write the attribute that says what belongs together, as in [product]"
            self.problem(f"{node.name} needs [attribute] in its braces", node.span, hint)
        return strategy

    def _check_listed(self, node: syntax.StrategyName) -> None:
        for listed in node.variables:
            if (variable := self.variable(listed.name, listed.span)) is None:
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

    def _each(self, value: Value, span: Span) -> int | None:
        referents = [self.named_as[part.name] for part in leaves(value) if isinstance(part, algebra.Attribute)]
        every = {one.variable for one in referents if isinstance(one, algebra.OfItem) and one.place == "every"}
        if len(every) > 1:
            self.problem("an item of two variables' events", span, "write an item for each of them")
        return min(every, default=None)

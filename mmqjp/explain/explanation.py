"""The output of `explain`, 100 columns wide: each query from its text to its SQL (thesis 6.2 to 6.4), or an event
statement's automaton and rows; the plan of all before and after the rules; tables of definitions and queries."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from itertools import chain, starmap
from typing import TYPE_CHECKING, Any

from common.bounds import INFINITE
from join_stage.protocol import NEW_LEFT, NEW_RIGHT, TemplateTable, template_statement, value_pairs_statement
from mmqjp.explain import terms
from mmqjp.explain.automaton import (
    EventProgram,
    NamedStatement,
    automaton,
    event_retention,
    operators_of,
    registered_statements,
)
from mmqjp.explain.plan import JOIN_MEANING, JOIN_RULE, decided_when, estimates, plan_lines, retention_text, whole_plan
from mmqjp.explain.svg import aligned, indented, query_lines, tree, wrapped, wrapped_lines, wrapped_sql
from mmqjp.queries.model import EventSubscription, HiddenStream, Subscription, Target
from mmqjp.queries.registry import Registry
from pattern_stage.index import RowClasses
from pattern_stage.plan import RULE_NAMES, RULES, EventPlan, MOp, RuleName, is_aggregate
from templates.graph import Minor, Shape, conjunctive_query
from xscl.algebra import joins
from xscl.algebra.events import Events, operator_name, read_by
from xscl.algebra.near import EXACTLY, is_weighed, level_hundredths
from xscl.algebra.values import ElementConstructor, many_valued
from xscl.event_lower import schema_of
from xscl.parser import parse_script
from xscl.printer import to_xscl
from xscl.syntax import EventDefinition

if TYPE_CHECKING:
    from mmqjp.engine import Session


def explanation_json(program: EventProgram, number: int) -> dict[str, Any]:
    one = program.statements[number]
    return {"query": one.name, "text": one.text, "automaton": asdict(automaton(program, number)),
            "shares_with": program.sharing(number)}  # fmt: skip


def automaton_lines(program: EventProgram, number: int) -> Iterator[str]:
    found = automaton(program, number)
    yield "  automaton"
    for state in found.states:
        line = f"{state.number}  {state.title}"
        if state.operator >= 0:
            line += f", kept for {state.keeps}" if state.keeps else ""
            line += f"; row {state.row} of {state.rows:,} of m-op {state.operator}"
            line += f", shared with {terms.few(state.shared, 'no other query')}"
        yield from wrapped(line, 4)
        for edge in (edge for edge in found.edges if edge.source == state.number):
            reads = f"{edge.stream}: " if edge.stream and edge.does else edge.stream
            yield from wrapped(f"{edge.kind} to {edge.target}  {reads}{', then '.join(edge.does)}", 8)
            yield from wrapped_lines(edge.found_by, 12)
    if found.windows:
        yield "    match windows"
        yield from wrapped_lines(found.windows, 8)
    yield from wrapped(f"shares operators with {terms.few(program.sharing(number), 'no other query')}", 2)


HEADINGS = ("rule", "m-ops", "rows", "stores", "aggregations")
"""Columns of the table of rules. `stores` are sets of rows with waiting events; `aggregations` are at one time."""


def plan_explanation(registry: Registry, rules: Sequence[RuleName], *, joined: bool) -> Iterator[str]:
    """Yields the plan without rules, each rule's effect, and the final plan. `joined`: with the rule of value joins."""
    statements = registered_statements(registry)
    before, after = whole_plan(registry, (), joined=False), whole_plan(registry, rules, joined=joined)
    yield from _titled("plan before the rules", plan_lines(before))
    names: dict[str, str] = {}
    steps: list[tuple[str, ...]] = [HEADINGS]
    off = "is off", "", "", ""
    if statements:
        names |= {name: " ".join((RULES[name].__doc__ or "").split()) for name in RULE_NAMES}
        steps.append(("none", *_sizes(statements, ())))
        for place, name in enumerate(RULE_NAMES, 1):
            on = [one for one in RULE_NAMES[:place] if one in rules]
            steps.append((name, *(_sizes(statements, on) if name in rules else off)))
    if any(one.is_of_documents for one in before):
        names[JOIN_RULE] = JOIN_MEANING
        for title, plan in (("documents", before), (JOIN_RULE, after)):
            own = [one for one in plan if one.is_of_documents]
            sizes = f"{len(own):,}", f"{sum(one.rows for one in own):,}", "", ""
            steps.append((title, *(sizes if joined or title != JOIN_RULE else off)))
    meanings = wrapped_lines((f"{name}  {meaning}" for name, meaning in names.items()), 0)
    yield from _titled("rules", [*aligned(steps), "", *meanings])
    yield from _titled("plan after the rules", plan_lines(after))


def _sizes(statements: Sequence[NamedStatement], rules: Sequence[RuleName]) -> Iterable[str]:
    plan = EventProgram(statements, rules).plan
    mops = [mop for mop in plan if mop.placement is not None]
    sizes = len(mops), sum(len(mop.rows) for mop in mops), sum(map(_stores, mops)), _aggregations(plan)
    return (f"{size:,}" for size in sizes)


def _aggregations(plan: EventPlan) -> int:
    """How often events of one time are aggregated: per AGGREGATE store, or once for all that share it."""
    partials = plan.partials().values()
    together = {mop.number for mops in partials for mop in mops}
    own = (mop for mop in plan if mop.placement is not None and is_aggregate(mop.placement))
    return len(partials) + sum(_stores(mop) for mop in own if mop.number not in together)


def _stores(mop: MOp) -> int:
    """How many sets of rows of an m-op read an event or store instances together."""
    classes = RowClasses(mop.rows)
    classes.add(mop.rows.numbers())
    return len(set(classes.of_row[mop.rows.numbers()].tolist()))


def _titled(title: str, lines: Iterable[str]) -> Iterator[str]:
    yield from _heading(title)
    yield from indented(lines, 2)
    yield ""


DEFINITION_COLUMNS = ("event", "from", "attributes", "read by")
QUERY_COLUMNS = ("event query", "reads", "operators", "keeps for", "shares operators with")


def definition_row(definition: EventDefinition, program: EventProgram) -> tuple[str, ...]:
    attributes = (name if kind == "string" else f"{name} (number)" for name, kind in schema_of(definition))
    readers = program.readers.get(definition.name, ())
    return definition.name, definition.block.stream, ", ".join(attributes), terms.few(readers, "-")


def summary_row(number: int, program: EventProgram) -> tuple[str, ...]:
    one = program.statements[number]
    names = [operator_name(part) for part in operators_of(one.stream) if not isinstance(part, Events)]
    kept = event_retention(one.stream)
    retention = "-" if kept == 0 else "ever" if kept is None else terms.format_window(kept)
    sharing = terms.few(program.sharing(number), "-")
    return one.name, ", ".join(read_by(one.stream)), ", ".join(names) or "-", retention, sharing


ARRAY = "[{}]"  # DuckDB's array constructor; Spark's is `array({})`, and nothing else differs

MOST_COMPARED = 5_000  # maximum number of registered event queries that one is compared with


def explanation(engine: Session, names: Container[str]) -> Iterator[str]:
    writer, registry = _Explanation(engine), engine.registry
    for subscription in (one for one in registry.subscriptions.values() if one.name in names):
        yield from writer.query(subscription)
        yield ""
    if any(target.conjunct.joins for target in writer.explained):
        yield from _heading("value pairs, shared by all templates")
        yield from wrapped("R_vj of a batch: the pairs of nodes of two documents with equal string values.", 2)
        by_words = any(target.conjunct.joins != target.conjunct.equalities() for target in writer.explained)
        if by_words:
            text = "Texts that near() or similar() finds have a value for each key: the numbers of some of their words."
            yield from wrapped(text, 2)
        yield from wrapped_sql(value_pairs_statement(NEW_RIGHT, registry.window, many=by_words), 4)
        text = f"Where documents came before, also {NEW_LEFT.pairs}: {NEW_LEFT.left} on the left, {NEW_LEFT.right} on "
        yield from wrapped(text + "the right; the templates' statements run over it in the same way.", 2)


class _Explanation:
    """Explains queries one by one; spells out a template only the first time."""

    def __init__(self, engine: Session) -> None:
        self._registry, self._plan = engine.registry, engine.plan
        self._estimates, self._measured = estimates(engine), engine.costs() or (engine.plan, {})
        self._spelt: dict[int, str] = {}
        self.explained: list[Target] = []

    def query(self, subscription: Subscription) -> Iterator[str]:
        yield from _heading(f"query {subscription.name}")
        if isinstance(subscription, EventSubscription):
            yield from self._events(subscription)
            return
        yield from query_lines(parse_script(subscription.text, stored=True), 2)
        yield ""
        yield from _normal_form(subscription)
        yield from self._targets(subscription, 2)

    def _events(self, query: EventSubscription) -> Iterator[str]:
        events = self._registry.events
        yield from wrapped(query.text, 2)
        yield ""
        yield from wrapped(f"an event query over {', '.join(events.reads(query))}; it joins no documents", 2)
        yield ""
        program, numbers = self._program
        number = numbers.get(query.qid)
        if number is None:
            program, number = EventProgram(registered_statements(self._registry, [query], 0)), 0
        yield from automaton_lines(program, number)

    @cached_property
    def _program(self) -> tuple[EventProgram, dict[int, int]]:
        compared = [query for query in self._registry.subscriptions.values() if query.is_events][:MOST_COMPARED]
        program = EventProgram(registered_statements(self._registry, most=MOST_COMPARED))
        return program, {query.qid: number for number, query in enumerate(compared)}

    def _targets(self, owner: Subscription | HiddenStream, indent: int) -> Iterator[str]:
        for number, target in enumerate(owner.targets, 1):
            if target.op in joins.NEGATED:
                what = "the left input" if not target.disjunct else f"the right input of disjunct {target.disjunct}"
                yield from indented(["", what], indent)
            elif len(owner.targets) > 1:
                yield from indented(["", f"disjunct {number} of {len(owner.targets)}"], indent)
            yield from indented(self._target(target), indent)
            for side in target.conjunct.sides():
                if side.hidden is not None:
                    yield from indented(self._hidden(side), indent)

    def _hidden(self, side: joins.Side) -> Iterator[str]:
        assert side.hidden is not None
        hidden = side.hidden
        yield ""
        yield f"inner join {joins.short_name(hidden.stream)}, whose tuples are read above"
        yield f"  {hidden.op} within {terms.format_window(hidden.window)}"
        handed = [f"{name} is {child.var}" for name, child in zip(hidden.variables, side.pattern.children, strict=True)]
        if handed:
            yield from wrapped(f"above, its {', '.join(handed)}", 2)
        yield from self._targets(self._registry.hidden(hidden.stream), 4)

    def _target(self, target: Target) -> Iterator[str]:
        self.explained.append(target)
        conjunct, placement = target.conjunct, target.placement
        shape = self._registry.catalog.templates[placement.template]
        yield ""
        yield "join graph" if conjunct.joins else "pattern"
        for label, side in zip(("left", "right"), conjunct.sides(), strict=False):
            what = "inner join" if side.hidden else "stream"
            yield f"  {f'{label}, ' if conjunct.joins else ''}{what} {joins.short_name(side.stream)}"
            yield from indented(tree(side.pattern), 4)
        if conjunct.joins:
            yield "  value joins"
            yield from wrapped_lines(starmap(_join_text, conjunct.joins), 4)
        if conjunct.residual:
            yield "  residual predicates, on each match of the joins"
            yield from wrapped_lines(map(to_xscl, conjunct.residual), 4)
        yield ""
        yield f"minor, as template {placement.template} numbers its nodes"
        nodes = _minor_nodes(target)
        for line, (*_, definition) in zip(aligned([node[:-1] for node in nodes]), nodes, strict=True):
            yield f"  {line}"
            yield from wrapped(definition, 6)
        yield from wrapped(f"structure {terms.structure_text(shape)}", 2)
        yield ""
        yield f"row of R_T{placement.template}"
        sharers = list(self._registry.of_row(placement.row))
        widest = max(other.window for other in sharers)
        values = [
            f"var{i} = {variable}" for i, variable in enumerate(target.placed.catalog.variables_of(target.row), 1)
        ]
        window = "INF" if widest == INFINITE else f"{widest} ({terms.format_window(widest)})"
        yield from wrapped(", ".join([f"qid = {placement.row}", *values, f"wl = {window}"]), 2)
        yield from wrapped(f"shared with {terms.names_of_others(sharers, [target.owner], 'no other query')}", 2)
        yield from self._template(target, shape)

    def _template(self, target: Target, shape: Shape) -> Iterator[str]:
        number = target.template
        yield ""
        yield f"template {number}"
        targets = chain.from_iterable(owner.targets for owner in self._registry.owners())
        users = (other for other in targets if other.template == number)
        yield from wrapped(f"shared with {terms.names_of_others(users, [target.owner], 'no other query')}", 2)
        yield from self._costs(target, shape)
        if number in self._spelt:
            yield f"  its Datalog and SQL stand above, at {self._spelt[number]}"
            return
        self._spelt[number] = target.owner.label
        yield "  Datalog"
        yield from wrapped_lines(conjunctive_query(shape, f"T{number}").datalog().splitlines(), 4)
        yield "  SQL, as DuckDB gets it"
        yield from wrapped_sql(template_statement(TemplateTable(number, shape), NEW_RIGHT, ARRAY), 4)

    def _costs(self, target: Target, shape: Shape) -> Iterator[str]:
        number, variables = target.template, self._registry.catalog.variables_of
        yield f"  plan {self._plan}"
        guess = self._estimates
        if not shape.joins:
            text = "one look at each match of the pattern"
        elif guess is None:
            text = "no documents are kept (--state DIR names a store with some)"
        else:
            row = guess.of_row(shape, variables(target.row))
            rows = [row for row, targets in self._registry.rows.items() if targets.template == number]
            total = guess.of_rows(shape, map(variables, rows))
            text = f"for a document like the {guess.documents:,} kept, {row[0] if row else 0:,.1f} pairs of equal "
            text += f"nodes for this row's rarest join, {total:,.1f} for the {len(rows):,} rows of the template"
        yield from wrapped(f"estimated cost: {text}", 2)
        plan, costs = self._measured
        if number in costs:
            cost = costs[number]
            others = [str(other) for other in cost.templates if other != number]
            text = f"{cost.seconds * 1e3:,.1f} ms for {cost.matches:,} matches of a batch, in the plan {plan}"
            text += f", together with template{'s' * (len(others) > 1)} {', '.join(others)}" if others else ""
        else:
            text = "no batch has matched it yet"
        yield from wrapped(f"last measured cost: {text}", 2)


def _heading(text: str) -> list[str]:
    return [text, "=" * len(text)]


def _normal_form(query: Subscription) -> Iterator[str]:
    normal = query.normal
    yield "  normal form"
    within = f"{normal.op} within {terms.format_window(normal.window)}"
    kind = within if normal.op else "a filter: each match is an output"
    if normal.absent:
        yield f"    {kind}: each match of the left input without a partner"
        for number, absent in enumerate(normal.absent):
            equal = [pair for pair in absent.joins if many_valued(pair[0].functions) is None]
            conditions = [f"{terms.term_text(left)} = {terms.term_text(right)}" for left, right in equal]
            conditions += map(to_xscl, absent.residual)
            yield from wrapped(f"{'or' if number else 'a partner has'} {' and '.join(conditions)}", 4)
        yield from wrapped(f"{decided_when(normal)}; {retention_text(normal)}", 4)
        kind = "the inputs are found apart, as filters; "
        kind += "the right ones are kept by what they must have in common with one"
    elif len(normal.conjuncts) > 1:
        kind += f"; {len(normal.conjuncts)} disjuncts, whose matches are united"
    yield f"    {kind}"
    if normal.op == joins.UNORDERED and joins.mirror_of(normal.conjuncts):
        yield "    of two matches that mirror each other, the one whose first document is less by (t1, stream, id)"
    elif normal.op == joins.UNORDERED:
        yield "    its inputs have no document in common, so that no match mirrors another: it means JOIN"
    entries = []
    for entry in normal.entries:
        text = f'"{entry.value}"' if isinstance(entry.value, str) else terms.term_text(entry.value)
        entries.append(entry.key if text == entry.key else f"{text} AS {entry.key}")
    root = f" in <{normal.constructor.name}>" if isinstance(normal.constructor, ElementConstructor) else ""
    yield from wrapped(f"SELECT {', '.join(entries) or 'nothing'}{root}", 4)
    shown = [e.value.var for e in normal.entries if isinstance(e.value, joins.Term)]
    shown += [var for key in (normal.once.keys if normal.once else ()) for var in joins.variables_of(key)]
    if any(map(joins.is_system_variable, shown)):
        yield "    (#p1, #p2, ...: variables made for paths; #b0, #b1, ...: unnamed block roots)"
    if query.publishes:
        hidden = "; HIDDEN: nobody else gets them" if query.is_hidden else ""
        yield f"    its outputs are documents of the stream of its name{hidden}"
    if normal.once is not None:
        within = "" if normal.once.window is None else f", within {terms.format_window(normal.once.window)}"
        yield from wrapped(f"told once for each ({', '.join(map(to_xscl, normal.once.keys))}){within}", 4)


def _minor_nodes(target: Target) -> list[tuple[str, ...]]:
    """Returns node, side, shared variable, name and definition of each node of the minor, in template order."""
    rows: dict[int, tuple[str, ...]] = {}
    ids, placement = target.placed.catalog.variables_of(target.row), target.placement
    for label, side, minor, slots in zip(
        ("left", "right"), target.conjunct.sides(), placement.minors, placement.slots, strict=False
    ):
        for index, slot in enumerate(slots):
            name, path = _node_name(side, minor, index), terms.definition_path(minor.nodes[index].definition)
            rows[slot] = (f"var{slot + 1}", label, f"variable {ids[slot]}", name, path)
    return [rows[slot] for slot in range(len(ids))]


def _node_name(side: joins.Side, minor: Minor, index: int) -> str:
    """Returns the query's name for a node of K: its value-join term, its variable, or its node test."""
    for term, node in minor.node_of.items():
        if node == index:
            return terms.term_text(term)
    pattern = side.pattern
    for child in minor.nodes[index].path:
        pattern = pattern.children[child]
    return pattern.var or f"({pattern.test})"


def _join_text(one: joins.Term, other: joins.Term) -> str:
    level = many_valued(one.functions)
    if level is None:
        return f"{terms.term_text(one)} = {terms.term_text(other)}"
    left, right = (terms.wrap_in_functions(term.functions[:-1], term.var) for term in (one, other))
    if level == EXACTLY:
        return f"a value of {left} = a value of {right}"
    rarest = "heaviest" if is_weighed(level) else "rarest"
    threshold = level_hundredths(level) / 100
    return f"one of the {rarest} words of {left} and of {right}, as many as a threshold of {threshold} asks for"

"""What `explain` says of event statements: the automaton of each, its rows, and the plan of all, before and after the
optimiser's rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any

from mmqjp.explain.automaton import operators_automaton
from mmqjp.explain.event_program import EventProgram, Statement, registered
from mmqjp.explain.pattern_automaton import pattern_automaton
from mmqjp.explain.states import Automaton, Edge, State
from mmqjp.explain.terms import MAX_NAMES
from mmqjp.explain.text_layout import aligned, indented, wrapped
from mmqjp.explain.whole_plan import JOIN_MEANING, JOIN_RULE, Operation, plan_lines, whole_plan
from mmqjp.queries.registry import Registry
from pattern_stage.classes import Classes
from pattern_stage.plan import MOp, Plan, is_aggregate
from pattern_stage.rules import RULE_NAMES, RULES, RuleName
from xscl.algebra.event_sequences import NearPattern, Pattern


def automaton(program: EventProgram, number: int) -> Automaton:
    """Returns the automaton of a statement in its plan."""
    stream = program.statements[number].stream
    if isinstance(stream, Pattern | NearPattern):
        return pattern_automaton(program, number, stream)
    return operators_automaton(program, number)


def automaton_lines(program: EventProgram, number: int) -> Iterator[str]:
    """Yields the lines that explain an event query by its automaton."""
    yield "  automaton"
    yield from _automaton(automaton(program, number))
    yield from wrapped(f"shares operators with {_listed(program.sharing(number))}", 2)


def explained(program: EventProgram, number: int) -> dict[str, Any]:
    """Returns the same of one query as a JSON object."""
    one = program.statements[number]
    return {"query": one.name, "text": one.text, "automaton": asdict(automaton(program, number)),
            "shares_with": program.sharing(number)}  # fmt: skip


def _automaton(found: Automaton) -> Iterator[str]:
    for state in found.states:
        yield from wrapped(f"{state.number}  {state.title}{_kept(state)}", 4)
        for edge in found.edges:
            if edge.source == state.number:
                yield from _edge(edge)
    if found.windows:
        yield "    match windows"
        yield from chain.from_iterable(wrapped(text, 8) for text in found.windows)


def _kept(state: State) -> str:
    if state.operator < 0:
        return ""
    shared = _listed(state.shared)
    row = f"row {state.row} of {state.rows:,} of m-op {state.operator}, shared with {shared}"
    return f", kept for {state.keeps}; {row}" if state.keeps else f"; {row}"


def _edge(edge: Edge) -> Iterator[str]:
    reads = f"{edge.stream}: " if edge.stream and edge.does else edge.stream
    yield from wrapped(f"{edge.kind} to {edge.target}  {reads}{', then '.join(edge.does)}", 8)
    yield from chain.from_iterable(wrapped(text, 12) for text in edge.found_by)


def _listed(names: Sequence[str]) -> str:
    shown = list(names[:MAX_NAMES])
    return ", ".join([*shown, *(["and more"] if len(names) > len(shown) else [])]) or "no other query"


# ---------------------------------------------------------------- the plan


HEADINGS = ("rule", "m-ops", "rows", "stores", "aggregations")
"""Of the table of rules: operators and their rows, sets of rows that keep what waits, and how often the events of a
time are aggregated."""


def plan_explanation(registry: Registry, rules: Sequence[RuleName], *, joined: bool) -> Iterator[str]:
    """Yields the lines of the plan of all queries without rules, what each rule does, and the plan after them. `joined`
    says whether the rule for value joins is on."""
    statements = registered(registry)
    before, after = whole_plan(registry, (), joined=False), whole_plan(registry, rules, joined=joined)
    yield from _titled("plan before the rules", plan_lines(before))
    names: dict[str, str] = {name: _meaning(name) for name in RULE_NAMES} if statements else {}
    if any(key.partition(" ")[0] in ("join", "filter") for key in (one.key for one in before)):
        names[JOIN_RULE] = JOIN_MEANING
    said = chain.from_iterable(wrapped(f"{name}  {meaning}", 0) for name, meaning in names.items())
    steps: list[tuple[str, ...]] = list(_steps(statements, rules)) if statements else [HEADINGS]
    if JOIN_RULE in names:
        steps += _joins(before, after, joined=joined)
    yield from _titled("rules", [*aligned(steps), "", *said])
    yield from _titled("plan after the rules", plan_lines(after))


def _joins(before: Sequence[Operation], after: Sequence[Operation], *, joined: bool) -> Iterator[tuple[str, ...]]:
    """Yields how many joins and filters of documents there are, and their rows, without the rule for them and with
    it."""
    for title, plan in (("documents", before), (JOIN_RULE, after)):
        if title == JOIN_RULE and not joined:
            yield title, "is off", "", "", ""
            continue
        own = [one for one in plan if one.key.startswith(("join ", "filter "))]
        yield title, f"{len(own):,}", f"{sum(one.rows for one in own):,}", "", ""


def _steps(statements: Sequence[Statement], rules: Sequence[RuleName]) -> Iterator[tuple[str, ...]]:
    """Yields a row for each rule: what there is with it and those before it."""
    yield HEADINGS
    yield "none", *_sizes(statements, ())
    for place, name in enumerate(RULE_NAMES):
        if name not in rules:
            yield name, "is off", "", "", ""
            continue
        on = [one for one in RULE_NAMES[: place + 1] if one in rules]
        yield name, *_sizes(statements, on)


def _meaning(name: RuleName) -> str:
    return " ".join((RULES[name].__doc__ or "").split())


def _sizes(statements: Sequence[Statement], rules: Sequence[RuleName]) -> tuple[str, str, str, str]:
    plan = EventProgram(statements, rules).plan
    mops = [mop for mop in plan if mop.placement is not None]
    sizes = len(mops), sum(len(mop.rows) for mop in mops), sum(map(_stores, mops)), _aggregations(plan)
    return f"{sizes[0]:,}", f"{sizes[1]:,}", f"{sizes[2]:,}", f"{sizes[3]:,}"


def _aggregations(plan: Plan) -> int:
    """How often the events of a time are aggregated: for each store of AGGREGATE, or once for all that share that."""
    partials = plan.partials().values()
    together = {mop.number for mops in partials for mop in mops}
    own = (mop for mop in plan if mop.placement is not None and is_aggregate(mop.placement))
    return len(partials) + sum(_stores(mop) for mop in own if mop.number not in together)


def _stores(mop: MOp) -> int:
    """How many sets of rows of an m-op look at an event or keep instances together."""
    classes = Classes(mop.rows)
    classes.add(mop.rows.numbers())
    return len(set(classes.of_row[mop.rows.numbers()].tolist()))


def _titled(title: str, lines: Iterable[str]) -> Iterator[str]:
    yield from (title, "=" * len(title))
    yield from indented(lines, 2)
    yield ""

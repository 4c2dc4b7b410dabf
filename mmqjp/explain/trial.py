"""Tries the queries of a script on a sample of documents. Counts what their blocks match, what joins and how many
outputs result, and renders the counts as a table with a note for each part that found nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from rich import box
from rich.table import Table
from rich.text import Text

from mmqjp.answers.quota import MAX_OUTPUTS
from mmqjp.engine import Session
from mmqjp.explain.blocks import BlockTrial, part_text, try_block
from mmqjp.explain.join_trial import JoinTrial, try_joins
from mmqjp.explain.terms import Sample, truncate_value, wrap_in_functions
from mmqjp.process import printable_line
from xscl.algebra.joins import NEGATED
from xscl.algebra.values import Span
from xscl.check_expressions import blocks
from xscl.problems import Lines, Problem, XsclError
from xscl.syntax import Block, EventDefinition, EventQuery, Join, Query, Script, StatementKind, StreamName, Window

MOST_QUERIES = 100
"""Maximum number of queries of a script that are tried."""

MOST_COUNTED = 1_000
"""Limit of the count of a wider join's outputs; it then means this many or more."""

MOST_PUBLISHED = 1_000
"""Maximum number of documents of a PUBLISHed stream that blocks are tried on."""


@dataclass(frozen=True, slots=True)
class QueryTrial:
    """The result of a query, or of a definition of events, on a sample. `outputs` are those of all queries of its name,
    or the events; `paused` says why one was paused.

    For a query without outputs, `without_window` counts the outputs without its last join's window, `in_any_order`
    those with JOIN instead of FOLLOWED BY as well, both up to MOST_COUNTED.
    """

    name: str
    query: Query | EventDefinition | EventQuery
    blocks: list[BlockTrial]
    joins: list[JoinTrial]
    outputs: int
    paused: str = ""
    without_window: int = 0
    in_any_order: int = 0


def try_queries(script: Script, located: Iterable[Query], sample: Sample) -> tuple[list[QueryTrial], Sample]:
    """Tries the queries of a script. `located` are the first of those over documents, with spans. Also returns the
    sample with what they PUBLISH."""
    namespaces = dict(script.namespaces)
    queries = list(located)
    upstream = _Upstream(script)
    numbers = {*range(len(script.queries if script.has_events else queries)), *upstream.of(queries)}
    part = _with_queries(script, [script.queries[number] for number in sorted(numbers)])
    names = _document_names(script)
    renamed = dict(zip(_document_names(part), (names[number] for number in sorted(numbers)), strict=True))
    keep = {block.stream for query in queries for block in blocks(query.source)}
    keep |= {definition.block.stream for definition in script.definitions}
    probes = _probes(script)
    run = _run(_with_events(part, probes.values()), sample, keep=keep)
    everything = sample.with_published(run.published)

    def tried(name: str, query: Query | EventDefinition | EventQuery, parts: Iterable[Block], real: str) -> QueryTrial:
        found = [try_block(block, everything.of(block.stream), namespaces) for block in parts]
        joins = try_joins(query.source, everything, namespaces) if isinstance(query, Query) else []
        return QueryTrial(name, query, found, joins, run.outputs[real], run.paused.get(real, ""))

    of_name = {name: real for real, name in renamed.items()}
    trials = [
        tried(name, query, blocks(query.source), of_name[name]) for name, query in zip(names, queries, strict=False)
    ]
    trials += [tried(one.name, one, [one.block], str(probes[one.name].publish)) for one in script.definitions]
    trials += [
        tried(name, query, (), real)
        for (query, name), real in zip(_named(script), part.names(), strict=False)
        if isinstance(query, EventQuery)
    ]
    return _explained(trials, script, upstream, sample), everything


def _named(script: Script) -> Iterator[tuple[Query | EventQuery, str]]:
    return zip(script.all_queries, script.names(), strict=True)


def _document_names(script: Script) -> list[str]:
    return [name for query, name in _named(script) if isinstance(query, Query)]


def _with_queries(script: Script, queries: Sequence[Query]) -> Script:
    """A script with other queries over documents."""
    order: list[StatementKind] = [kind for kind in script.order if kind != "query"]
    order += ["query"] * len(queries)
    if len(queries) == len(script.queries):
        order = list(script.order)
    return replace(script, queries=tuple(queries), order=tuple(order))


def _with_events(script: Script, queries: Iterable[EventQuery]) -> Script:
    more = tuple(queries)
    kinds: list[StatementKind] = ["event query"] * len(more)
    return replace(script, event_queries=(*script.event_queries, *more), order=(*script.order, *kinds))


def _probes(script: Script) -> dict[str, EventQuery]:
    """Queries for all events of each definition, under new names."""
    taken = {*script.names(), *(definition.name for definition in script.definitions)}
    fresh = (name for number in range(2 * len(taken)) if (name := f"events{number}") not in taken)
    return {
        definition.name: EventQuery(StreamName(definition.name), publish=next(fresh))
        for definition in script.definitions
    }


class _Upstream:
    def __init__(self, script: Script) -> None:
        self._queries = script.queries
        self._writers: dict[str, list[int]] = {}
        for number, query in enumerate(script.queries):
            if query.publish is not None:
                self._writers.setdefault(query.publish, []).append(number)

    def of(self, queries: Iterable[Query]) -> set[int]:
        found: set[int] = set()
        met: set[str] = set()
        waiting = list(queries)
        while waiting:
            for stream in {block.stream for block in blocks(waiting.pop().source)} - met:
                met.add(stream)
                found.update(self._writers.get(stream, ()))
                waiting += (self._queries[number] for number in self._writers.get(stream, ()))
        return found


@dataclass
class _Run:
    """Outputs by query name, why queries were paused, and PUBLISHed documents of some streams."""

    outputs: Counter[str] = field(default_factory=Counter)
    paused: dict[str, str] = field(default_factory=dict)
    published: dict[str, list[str]] = field(default_factory=dict)


def _run(script: Script, sample: Sample, *, keep: Container[str] = (), most_outputs: int = MAX_OUTPUTS) -> _Run:
    run = _Run(published={name: [] for name in script.published() if name in keep})
    with Session("duckdb", settle=None, max_outputs=most_outputs) as engine:
        engine.ensure(script)
        for output in chain(engine.process(sample.documents), engine.finish()):
            run.outputs[output.query] += 1
            kept = run.published.get(output.query)
            if kept is not None and len(kept) < MOST_PUBLISHED:
                kept.append(output.xml)
        run.paused = engine.take_paused()
    return run


def _explained(trials: Sequence[QueryTrial], script: Script, upstream: _Upstream, sample: Sample) -> list[QueryTrial]:
    """Adds the counts of wider joins to trials without outputs. All wider joins run in one session, under unread names,
    with their upstream queries."""
    joins = {id(trial): trial.query for trial in trials if isinstance(trial.query, Query) and _might_join(trial)}
    empty = [trial for trial in trials if id(trial) in joins]
    if not empty:
        return list(trials)
    needed = range(len(script.queries)) if script.has_events else sorted(upstream.of(joins.values()))
    behind = [script.queries[number] for number in needed]
    known = {block.stream for query in (*behind, *joins.values()) for block in blocks(query.source)}
    known |= {*script.names(), *(definition.name for definition in script.definitions)}
    known |= {query.publish for query in behind if query.publish is not None}
    fresh = (name for number in range(len(known) + 2 * len(empty)) if (name := f"wider{number}") not in known)
    names: list[tuple[str, str]] = []
    wider: list[Query] = []
    for query in joins.values():
        assert isinstance(query.source, Join)
        endless = replace(query.source, window=Window(None))
        names.append((next(fresh), next(fresh)))
        for name, source in zip(names[-1], (endless, replace(endless, op="JOIN")), strict=True):
            wider.append(replace(query, source=source, publish=name))
    run = _run(_with_queries(script, [*behind, *wider]), sample, most_outputs=MOST_COUNTED)
    counts = {
        id(trial): (_count(run, one), _count(run, other)) for trial, (one, other) in zip(empty, names, strict=True)
    }
    explained = []
    for trial in trials:
        ordered, either = counts.get(id(trial), (0, 0))
        explained.append(replace(trial, without_window=ordered, in_any_order=ordered or either))
    return explained


def _might_join(trial: QueryTrial) -> bool:
    possible = all(block.matched for block in trial.blocks) and all(join.shared for join in trial.joins)
    source = trial.query.source if isinstance(trial.query, Query) else None
    is_join = isinstance(source, Join) and source.op not in NEGATED
    return possible and not trial.outputs and not trial.paused and is_join


def _count(run: _Run, name: str) -> int:
    too_many = run.paused.get(name, "").startswith(f"more than {MOST_COUNTED:,} matches in ")
    return MOST_COUNTED if too_many else run.outputs[name]


def table(trials: Sequence[QueryTrial], text: str) -> Table:
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("query", "part", "found"):
        made.add_column(column, overflow="fold")
    for trial in trials:
        paused = f", then paused: {printable_line(trial.paused)}" if trial.paused else ""
        what = "events" if isinstance(trial.query, EventDefinition) else "outputs"
        rows = [(trial.name, what, f"{trial.outputs:,}{paused}")]
        rows += [("", part_text(block.block.span, text), _matched(block)) for block in trial.blocks]
        rows += [("", part_text(join.span, text), _joined(join)) for join in trial.joins]
        for row in rows:
            made.add_row(*(Text(cell) for cell in row))
    return made


def trial_notes(trials: Sequence[QueryTrial], text: str, sample: Sample) -> list[XsclError]:
    """Returns a note for each part of a query that found nothing, in text order."""
    lines = Lines(text)
    found = [XsclError(problem, lines) for trial in trials for problem in _problems(trial, text, sample)]
    return sorted(found, key=lambda note: (note.span.start, note.span.end))


def _problems(trial: QueryTrial, text: str, sample: Sample) -> Iterator[Problem]:
    for block in trial.blocks:
        if not block.documents:
            others = ", ".join(
                f"{printable_line(stream)} ({len(trees):,})" for stream, trees in sample.trees.items() if trees
            )
            start = block.block.span.start
            span = Span(start, max(block.stages[0].span.end, start + len(block.block.stream)))
            message = f"there is no document of stream {block.block.stream}"
            yield Problem(message, span, f"there are documents of {others}" if others else "")
        elif block.failed is not None:
            yield _failed(block, text)
    for join in trial.joins:
        if not join.shared and join.left and join.right:
            what = f"the two sides have {join.left:,} and {join.right:,} values, and no two documents share one"
            hint = ""
            if join.functions:
                around = wrap_in_functions(join.functions, "...")
                hint = f"they share {join.shared_then:,} with {around} around both sides"
            elif join.instead:
                texts = " and ".join(f'"{truncate_value(text)}"' for text in join.near)
                hint = f"{texts} differ in a few words: {join.instead}"
            yield Problem(what, join.span, hint)
    if isinstance(trial.query, Query) and (trial.without_window or trial.in_any_order):
        span = trial.query.source.span
        if trial.without_window:
            yield Problem(
                "nothing joins within the window", span, f"with INF it would give {_outputs(trial.without_window)}"
            )
        else:
            hint = f"JOIN would give {_outputs(trial.in_any_order)}: it takes equal times, and either order"
            yield Problem("nothing is FOLLOWED BY what it joins", span, hint)


def _failed(block: BlockTrial, text: str) -> Problem:
    assert block.failed is not None
    number = block.failed
    stage = block.stages[number]
    documents = f"{block.documents:,} documents of stream {block.block.stream}"
    if block.documents == 1:
        documents = f"the document of stream {block.block.stream}"
    message = f"{part_text(stage.span, text)} matched none of {documents}"
    if number:
        before = block.stages[number - 1]
        message += f"; before it, {part_text(before.span, text)} matched {block.counts[number - 1]:,}"
    return Problem(message, stage.span, block.hint)


def _outputs(count: int) -> str:
    more = " or more" if count == MOST_COUNTED else ""
    return f"{count:,}{more} output{'' if count == 1 else 's'}"


def _matched(block: BlockTrial) -> str:
    found = f"{block.matched:,} of {block.documents:,} documents"
    return f"{found} ({block.left_out:,} too large to try)" if block.left_out else found


def _joined(join: JoinTrial) -> str:
    return f"{join.left:,} and {join.right:,} values, {join.shared:,} shared"

"""`mmqjp check` and `mmqjp explain`: find mistakes in query files; show how queries run and what they share."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path

import click
from rich.table import Table

from common.files import whole_file
from feeds.documents import VISITS_STREAM, with_visit_documents
from feeds.feed import EntryForm
from feeds.tail import read_documents
from join_stage.plans import DEFAULT_PLAN, PLANS
from join_stage.store.protocol import Outdated
from mmqjp.commands import options
from mmqjp.commands.command_line import FAILED, Failure, debug_option
from mmqjp.commands.console import console, progress_shown, text_table
from mmqjp.commands.formats import open_engine
from mmqjp.engine import Session
from mmqjp.explain import explanation as explanations
from mmqjp.explain.automaton import EventProgram, compile_statements, registered_statements
from mmqjp.explain.pictures import join_graphs, plan_picture
from mmqjp.explain.plan import JOIN_RULE, absences_in, answers_after, whole_plan
from mmqjp.explain.svg import as_file
from mmqjp.explain.terms import leaf_sides, names_of_others
from mmqjp.explain.trial import MOST_TRIED_QUERIES, Sample, in_turns, sample_of, table_rows, trial_notes, try_queries
from mmqjp.explain.warnings import warnings_of
from mmqjp.process import pluralise, printable_line
from mmqjp.queries.model import HiddenStream, Subscription
from mmqjp.queries.registry import Registry
from mmqjp.state.engine_choice import AUTO, DUCKDB, stored_engine
from pattern_stage.plan import RULE_NAMES, RuleName
from xscl.parser import parse_script
from xscl.syntax import Query, Script
from xscl.text import did_you_mean, rendered

MOST_LISTED, MOST_TRIED = 1_000, 500
"""Maximum number of queries listed per file, and default number of documents that queries are tried on."""

COLUMNS = ("query", "kind", "reads", "disjuncts", "value joins", "templates", "shares a row with")
NAME_WIDTH = 40


@click.command(cls=options.FeedsBeforePaths)
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@options.feeds_option
@click.option("--strict", is_flag=True, help="Fail if there are warnings.")
@click.option(
    "--against", metavar="PATH", multiple=True, type=click.Path(exists=True, path_type=Path),
    help="Try the queries on documents, and show what each part of them found. May be repeated.",
)  # fmt: skip
@click.option(
    "--limit", metavar="N", type=options.AtLeast(1), default=MOST_TRIED, show_default=True,
    help="Most documents to try the queries on.",
)  # fmt: skip
@options.time_xpath_option
@debug_option
def check(
    files: tuple[Path, ...], feeds: EntryForm | None, strict: bool, against: tuple[Path, ...], limit: int,
    time_xpath: str | None,
) -> None:  # fmt: skip
    """Check query files: print every mistake with its place and a hint, or a summary of the queries.

    \b
    Examples:
      mmqjp check stories.xscl
      mmqjp check --feeds stories.xscl
      mmqjp check stories.xscl --against feeds/ --feeds

    With --feeds, also warn about names that items do not have, streams that nothing writes, and comparisons that never
    hold. With --against, run the queries over some documents, and show which part of which query finds nothing.
    """
    sample = None
    if against:
        with progress_shown():
            sources = _spread(against) if feeds else against
            found = in_turns(read_documents([path], feeds=feeds, time_xpath=time_xpath) for path in sources)
            if any(VISITS_STREAM.encode() in path.read_bytes() for path in files if path.is_file()):
                found = with_visit_documents(found)
            sample = sample_of(found, limit)
        if not sample.documents:
            raise Failure(f"{', '.join(map(str, against))}: there is no document to try the queries on")
    failed = False
    for path in files:
        try:
            text, script = options.read_script(path)
            summary = summarise_script(script) if script.queries else None
        except Failure as failure:
            failure.show()
            failed = True
            continue
        counts = pluralise(len(script.all_queries), "query", "queries")
        counts += f", {pluralise(len(script.definitions), 'event')} defined" if script.definitions else ""
        click.echo(f"{path}: {counts}, no mistakes")
        if sample is not None:
            _show_trial(path, text, script, sample)
        elif summary is not None:
            table, notes = summary
            _show(table, len(script.queries), "query", "queries")
            click.echo("".join(f"{note}\n" for note in notes), nl=False)
        if script.has_events:
            _show_events(script)
        if warnings := warnings_of(text, script, feeds):
            click.echo(rendered(warnings, str(path), "warning", "warning"), err=True)
            failed = failed or strict
    if failed:
        raise click.exceptions.Exit(FAILED)


def _show(table: Table, count: int, noun: str, several: str) -> None:
    console().print(table)
    if more := count - table.row_count:
        click.echo(f"and {pluralise(more, noun, several)} more")


def _show_events(script: Script) -> None:
    program = EventProgram(compile_statements(script))
    if script.definitions:
        rows = (explanations.definition_row(definition, program) for definition in script.definitions[:MOST_LISTED])
        _show(text_table(explanations.DEFINITION_COLUMNS, rows), len(script.definitions), "event", "events")
    if count := len(program.statements):
        rows = (explanations.summary_row(number, program) for number in range(min(count, MOST_LISTED)))
        _show(text_table(explanations.QUERY_COLUMNS, rows), count, "event query", "event queries")


def _spread(paths: Iterable[Path]) -> Iterator[Path]:
    """Expands a directory that holds only directories, usually one per feed."""
    for path in paths:
        inside = sorted(path.iterdir()) if path.is_dir() else []
        yield from inside if inside and all(one.is_dir() for one in inside) else [path]


def _show_trial(path: Path, text: str, script: Script, sample: Sample) -> None:
    streams = ", ".join(f"{printable_line(stream)} {count:,}" for stream, count in sample.streams.items())
    refused = f"; {sample.refused:,} could not be read" if sample.refused else ""
    click.echo(f"tried on {pluralise(len(sample.documents), 'document')} (stream {streams}{refused})")
    with progress_shown():
        trials = try_queries(script, text, sample)
    console().print(text_table(("query", "part", "found"), table_rows(trials)))
    if (more := len(script.queries) - MOST_TRIED_QUERIES) > 0:
        click.echo(f"and {pluralise(more, 'query', 'queries')} more, not tried")
    if notes := trial_notes(trials, text):
        click.echo(rendered(notes, str(path), "note", "note"))


def summarise_script(script: Script) -> tuple[Table, list[str]]:
    """Returns a table of at most MOST_LISTED queries, and for each absence a line that says when it is decided."""
    names = [name for query, name in zip(script.all_queries, script.names(), strict=True) if isinstance(query, Query)]
    with Session("duckdb") as engine:
        with progress_shown():
            engine.ensure(script)
        joins = [query for query in engine.registry.subscriptions.values() if not query.is_events][:MOST_LISTED]
        table = text_table(COLUMNS, (_row(engine.registry, subscription) for subscription in joins))
        table.columns[0].min_width = min(max(map(len, names[:MOST_LISTED])), NAME_WIDTH)
    delays = ((one.name, dict.fromkeys(map(answers_after, absences_in(one.normal)))) for one in joins)
    return table, [f"{printable_line(name)}: {one}" for name, some in delays for one in some]


def _row(registry: Registry, subscription: Subscription) -> tuple[str, ...]:
    normal = subscription.normal
    owners: list[Subscription | HiddenStream] = [subscription, *registry.inner_joins(subscription)]
    blocks = list(leaf_sides(normal.conjuncts[0]))
    kind = f"chain of {len(blocks)}" if len(blocks) > 2 else normal.op or "filter"
    parts = normal.absent or normal.conjuncts
    joins = sorted({len(part.joins) for part in parts})
    templates = sorted({target.template for owner in owners for target in owner.targets})
    sharers = (t for owner in owners for target in owner.targets for t in registry.of_row(target.row))
    streams = ", ".join(dict.fromkeys(block.stream for block in blocks))
    counts = str(len(parts)), "-".join(map(str, dict.fromkeys((joins[0], joins[-1]))))
    shared = ", ".join(map(str, templates)), names_of_others(sharers, owners, "-")
    return subscription.name, kind, streams, *counts, *shared


WHOLE = "whole"  # value of --plan without an argument
LISTED_NAMES = 10  # maximum number of query names in an error


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--query", metavar="NAME", help="Only the queries with this name.")
@options.state_option(
    "A store with the queries: also show their cost there, and which other queries share with them.", exists=True
)
@click.option(
    "--svg", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
    help="Draw the join graphs into a file instead: both inputs of each join, and the value joins between them.",
)  # fmt: skip
@click.option(
    "--without", metavar="RULE", multiple=True, type=click.Choice((*RULE_NAMES, JOIN_RULE)),
    help=f"Switch off a rule of the plan: {', '.join(RULE_NAMES)} or {JOIN_RULE}. May be repeated.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print event queries as JSON, one object per line.")
@click.option(
    "--plan", is_flag=False, flag_value=WHOLE, type=click.Choice((*PLANS, WHOLE)), default=DEFAULT_PLAN,
    help="Without a value: show the plan of all queries together instead, before the rules and after them; with --svg, "
    f"as a picture. With one of {', '.join(PLANS)}: explain joins for that way of computing them.",
)  # fmt: skip
@debug_option
def explain(
    file: Path, query: str | None, state: Path | None, svg: Path | None, without: tuple[str, ...], as_json: bool,
    plan: str,
) -> None:  # fmt: skip
    """Explain how queries are run: normal form, join graph, minor, template, Datalog, SQL, cost and sharing.

    \b
    Examples:
      mmqjp explain stories.xscl --query same_story
      mmqjp explain stories.xscl --state store/
      mmqjp explain stories.xscl --query same_story --svg same_story.svg
      mmqjp explain patterns.xscl --plan --without cse
      mmqjp explain patterns.xscl --plan --svg plan.svg

    The queries of the file are registered together in a temporary engine, so that sharing is shown even for a single
    query. With --state, the queries of the store with the names in the file are explained, and nothing is registered.
    """
    text = options.read_script(file)[0] if state is None else options.text_for_store(file)
    if state is not None and stored_engine(state) is None:
        raise Failure(f"there is no store in {state}: mmqjp run --state creates one")
    shows_plan = plan == WHOLE
    plan = DEFAULT_PLAN if shows_plan else plan
    with _opened(state, plan) as engine:
        script = parse_script(text, events=engine.registry.events.streams())
        if state is None:
            engine.ensure(script)
        names = [name for name in dict.fromkeys(script.names()) if name in engine.queries()]
        if not names:
            raise Failure(f"{state} has none of the queries in {file}: mmqjp run --state registers them")
        if query is not None and query not in names:
            known = did_you_mean(query, names) or f"it has {', '.join(names[:LISTED_NAMES])}"
            raise Failure(f"{file} has no query named {query}; {known}")
        chosen = names if query is None else [query]
        rules = [name for name in RULE_NAMES if name not in without]
        joined = JOIN_RULE not in without
        if as_json:
            _explain_events(file, engine, chosen, rules)
        elif svg is not None:
            if shows_plan:
                before = whole_plan(engine.registry, (), joined=False)
                drawn = plan_picture(before, whole_plan(engine.registry, rules, joined=joined))
            else:
                drawn = _graphs(engine, chosen)
            with whole_file(svg) as output:
                output.write(as_file(drawn).encode())
        elif shows_plan:
            click.echo("\n".join(explanations.plan_explanation(engine.registry, rules, joined=joined)))
        else:
            click.echo("\n".join(explanations.explanation(engine, chosen)))


def _explain_events(file: Path, engine: Session, names: Container[str], rules: Sequence[RuleName]) -> None:
    statements = registered_statements(engine.registry)
    if not any(one.name in names for one in statements):
        raise Failure(f"{file} has no event query, and --json is for these")
    program = EventProgram(statements, rules)
    for number, one in enumerate(statements):
        if one.name in names:
            click.echo(json.dumps(explanations.explanation_json(program, number)))


def _graphs(engine: Session, names: Container[str]) -> str:
    subscriptions = engine.registry.subscriptions.values()
    joins = [(query.name, query.text) for query in subscriptions if query.name in names and not query.is_events]
    if not joins:
        raise Failure("event queries have no join graph: --plan --svg FILE draws how they are run")
    return join_graphs(*joins)  # parses only the texts that it draws


def _opened(state: Path | None, plan: str) -> Session:
    if state is None:
        return Session(DUCKDB, plan=plan)
    try:
        return open_engine(DUCKDB, state, plan=plan, read_only=True)
    except Outdated:
        return open_engine(AUTO, state, plan=plan)

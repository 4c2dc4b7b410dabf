"""`mmqjp explain`: shows how the queries of a file are run and what they share."""

from __future__ import annotations

import json
from collections.abc import Container, Sequence
from difflib import get_close_matches
from pathlib import Path

import click

from common.whole_file import whole_file
from join_stage.joiner import DEFAULT_PLAN, PLANS
from join_stage.store.protocol import Outdated
from mmqjp.commands.debug import debug_option
from mmqjp.commands.failure import Failure
from mmqjp.commands.open import open_engine
from mmqjp.commands.options import read_script
from mmqjp.explain.estimates import estimates
from mmqjp.explain.event_explanation import explained, plan_explanation
from mmqjp.explain.event_program import EventProgram, registered
from mmqjp.explain.explanation import CostInfo, explanation
from mmqjp.explain.join_graph import join_graphs
from mmqjp.explain.plan_picture import plan_picture
from mmqjp.explain.svg import as_file
from mmqjp.explain.whole_plan import JOIN_RULE, whole_plan
from mmqjp.session import Session
from mmqjp.state.choice import AUTO, DUCKDB, stored_engine
from pattern_stage.rules import RULE_NAMES, RuleName

WHOLE = "whole"
"""What --plan is without a value."""

LISTED_NAMES = 10
"""How many query names of a file an error lists."""


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--query", metavar="NAME", help="Only the queries of this name.")
@click.option(
    "--state",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A store with the queries: also show their cost there, and the other queries that share with them.",
)
@click.option(
    "--svg",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw the join graphs into a file instead: both inputs of each join, and the value joins between them.",
)
@click.option(
    "--without", metavar="RULE", multiple=True, type=click.Choice((*RULE_NAMES, JOIN_RULE)),
    help=f"Switch a rule of the plan off: {', '.join(RULE_NAMES)} or {JOIN_RULE}. May be repeated.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print event queries as JSON, one object a line.")
@click.option(
    "--plan", is_flag=False, flag_value=WHOLE, type=click.Choice((*PLANS, WHOLE)), default=DEFAULT_PLAN,
    help="Without a value: show the plan of all queries together instead, before the rules and after them; with --svg, "
    f"as a picture. With one of {', '.join(PLANS)}: explain joins for that way of computing them.",
)  # fmt: skip
@debug_option
def explain(
    file: Path,
    query: str | None,
    state: Path | None,
    svg: Path | None,
    without: tuple[str, ...],
    as_json: bool,
    plan: str,
) -> None:
    """Explain how queries are run: normal form, join graph, minor, template, Datalog, SQL, cost and what is shared.

    \b
    Examples:
      mmqjp explain stories.xscl --query same_story
      mmqjp explain stories.xscl --state store/
      mmqjp explain stories.xscl --query same_story --svg same_story.svg
      mmqjp explain patterns.xscl --plan --without cse
      mmqjp explain patterns.xscl --plan --svg plan.svg

    The queries of the file are registered together in a temporary engine, so that what they share is shown even for a
    single query. With --state, the queries of the store with the names in the file are explained, and nothing is
    registered.
    """
    script = read_script(file)[1]
    if state is not None and stored_engine(state) is None:
        raise Failure(f"there is no store in {state}: mmqjp run --state creates one")
    shows_plan = plan == WHOLE
    plan = DEFAULT_PLAN if shows_plan else plan
    with _opened(state, plan) as engine:
        if state is None:
            engine.ensure(script)
        names = [name for name in dict.fromkeys(script.names()) if name in engine.queries()]
        if not names:
            raise Failure(f"{state} has none of the queries in {file}: mmqjp run --state registers them")
        if query is not None and query not in names:
            raise _unknown(file, query, names)
        chosen = names if query is None else [query]
        rules = [name for name in RULE_NAMES if name not in without]
        if as_json:
            _explain_events(file, engine, chosen, rules)
            return
        if shows_plan:
            _explain_plan(engine, rules, svg, joined=JOIN_RULE not in without)
            return
        if svg is not None:
            _draw(engine, chosen, svg)
            return
        known_costs = CostInfo(estimates(engine), engine.costs())
        click.echo("\n".join(explanation(engine.registry, chosen, plan, known_costs)))


def _unknown(file: Path, query: str, names: Sequence[str]) -> Failure:
    close = get_close_matches(query, names, 1)
    known = f"did you mean {close[0]}?" if close else f"it has {', '.join(names[:LISTED_NAMES])}"
    return Failure(f"{file} has no query named {query}; {known}")


def _explain_plan(engine: Session, rules: Sequence[RuleName], svg: Path | None, *, joined: bool) -> None:
    """Prints the plan of all queries of an engine, or draws it into a file."""
    if svg is None:
        click.echo("\n".join(plan_explanation(engine.registry, rules, joined=joined)))
        return
    before = whole_plan(engine.registry, (), joined=False)
    after = whole_plan(engine.registry, rules, joined=joined)
    with whole_file(svg) as output:
        output.write(as_file(plan_picture(before, after)).encode())


def _explain_events(file: Path, engine: Session, names: Container[str], rules: Sequence[RuleName]) -> None:
    """Prints the automata of the event queries of some names as JSON."""
    statements = registered(engine.registry)
    if not any(one.name in names for one in statements):
        raise Failure(f"{file} has no event query, and --json is for these")
    program = EventProgram(statements, rules)
    for number, one in enumerate(statements):
        if one.name in names:
            click.echo(json.dumps(explained(program, number)))


def _draw(engine: Session, names: Container[str], file: Path) -> None:
    """Draws the join graphs of the queries of some names into a file."""
    chosen = [query for query in engine.registry.subscriptions.values() if query.name in names]
    # Each text is a script of its own. It is parsed once if the picture shows it, and not at all if it does not.
    drawn = join_graphs([(query.name, query.text) for query in chosen if not query.is_events])
    with whole_file(file) as output:
        output.write(as_file(drawn).encode())


def _opened(state: Path | None, plan: str) -> Session:
    """An engine to read from: on the store, or a new, empty one."""
    if state is None:
        return Session(DUCKDB, plan=plan)
    try:
        return open_engine(DUCKDB, None, plan, state, read_only=True)
    except Outdated:
        return open_engine(AUTO, None, plan, state)

"""The event statements of a script as tables: what is defined, who reads it, what queries keep and share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from mmqjp.explain.event_program import EventProgram, Statement, kept_for, operators_of
from mmqjp.explain.terms import MAX_NAMES, window_text
from mmqjp.queries.event_compile import read_by
from xscl.algebra.events import Events
from xscl.event_normal import schema_of
from xscl.event_syntax import EventDefinition

DEFINITION_COLUMNS = ("event", "from", "attributes", "read by")
QUERY_COLUMNS = ("event query", "reads", "operators", "keeps for", "shares operators with")


def definition_row(definition: EventDefinition, program: EventProgram) -> tuple[str, ...]:
    """Returns the row of a definition: its name, its stream of documents, its attributes, and the queries over it."""
    attributes = (name if kind == "string" else f"{name} (number)" for name, kind in schema_of(definition))
    readers = program.readers.get(definition.name, ())
    return definition.name, definition.block.stream, ", ".join(attributes), _names(readers)


def query_row(number: int, program: EventProgram) -> tuple[str, ...]:
    """Returns the row of a query: its name, what it reads, its operators, how long it keeps events, who shares them."""
    one = program.statements[number]
    return one.name, ", ".join(read_by(one.stream)), _operators(one), _kept(one), _names(program.sharing(number))


def _operators(statement: Statement) -> str:
    names = [type(one).__name__.upper() for one in operators_of(statement.stream) if not isinstance(one, Events)]
    return ", ".join(names) or "-"


def _kept(statement: Statement) -> str:
    kept = kept_for(statement.stream)
    return "ever" if kept is None else window_text(kept) if kept else "-"


def _names(names: Sequence[str]) -> str:
    """A list of names, cut short; nobody is -."""
    shown = list(islice(names, MAX_NAMES))
    return ", ".join([*shown, *(["and more"] if len(names) > len(shown) else [])]) or "-"

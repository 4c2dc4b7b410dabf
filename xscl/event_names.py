"""The names in event statements: which cannot be, and where they stand."""

from __future__ import annotations

from xscl.algebra.expressions import Span
from xscl.event_syntax import EventDefinition, EventQuery

RESERVED = frozenset(
    {
        *("select", "from", "publish", "as", "and", "or", "not", "is", "null", "filter", "next", "fold", "union"),
        *("aggregate", "by", "over", "within", "dur", "gap", "define", "pattern"),
    }
)
"""The keywords of event queries, in lower case. Behind a dot they are attributes."""

RESERVED_IN_PATTERNS = frozenset(
    {
        *("select", "from", "publish", "as", "and", "or", "not", "is", "null", "within", "dur", "gap", "define"),
        *("pattern", "seq", "set", "where", "having", "return", "errors", "budget", "all", "non", "overlapping"),
        *("earliest", "maximal"),
    }
)
"""What cannot be the name of a stream or a variable in PATTERN, in lower case."""


def event_name_span(text: str, statement: EventDefinition | EventQuery) -> Span:
    """Where the name of a definition stands in the text of its script, or that which a query PUBLISHes."""
    if isinstance(statement, EventQuery):
        return Span(statement.span.end - len(statement.publish or ""), statement.span.end)
    # Comments may stand between the words.
    start = text.find(statement.name, statement.span.start + len("define event"), statement.span.end)
    return Span(start, start + len(statement.name))

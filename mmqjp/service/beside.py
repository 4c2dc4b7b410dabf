"""Questions about outputs and queries that a service answers beside its batches. They read the store by SELECTs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from common.errors import InputError
from join_stage.store.reading import Bounds, Question, QuestionInterrupted
from mmqjp.present.output_why import why_output
from mmqjp.present.query_funnel import query_funnel
from mmqjp.present.why_not import why_not
from mmqjp.service.explained import explained_text
from mmqjp.session import Session
from mmqjp.tables.lookup import Select

WHY = "why"
"""The command that asks why an output came about."""

WHY_NOT = "why-not"
"""The command that asks why there is no output."""

EXPLAIN_TEXT = "explain-text"
"""The command that asks how the queries of a text would be run."""

LONGEST_TEXT = 100_000
"""The most characters of a text that is explained."""

LOGGED = ("sql", "id", "query", "documents")
"""The arguments of questions that are logged."""

MOST_ROWS, MOST_BYTES = 100_000, 256 << 20
"""A question asks for no more at once, so that it cannot exhaust the memory of the service."""

MOST_DOCUMENTS = 20
"""So many documents may be named in a question."""

Look = Callable[[Select, Mapping[str, Any]], object]


class BadQuestion(InputError, ValueError):
    """A question lacks an argument."""


class Beside:
    """A question that is answered by SELECTs, in any thread. It may be interrupted between them and within them."""

    def __init__(self, engine: Session, look: Look, arguments: Mapping[str, Any]) -> None:
        self._engine, self._look, self._arguments = engine, look, arguments
        self._cut = False
        self._running: Question | None = None

    def answer(self) -> Any:
        """Returns the answer, which JSON can hold. Raises QuestionInterrupted, and what is said of the question."""
        return self._look(self._select, self._arguments)

    def interrupt(self) -> None:
        """Ends it as soon as it asks for something, or while it waits for that."""
        self._cut = True
        if (running := self._running) is not None:
            running.interrupt()

    def _select(self, sql: str) -> pa.Table:
        self._running = question = self._engine.question(sql, Bounds(MOST_ROWS, MOST_BYTES))
        if self._cut:
            raise QuestionInterrupted("the question was interrupted")
        return question.answer()


def _why(select: Select, arguments: Mapping[str, Any]) -> object:
    """Why an output came about. `id` is its id, a beginning of it that no other has, or its number (`seq`) as text.

    Returns what `mmqjp.present.output_why.OutputWhy.to_dict` does; `OutputWhy.from_dict` reads it.
    """
    return why_output(select, text_of(arguments, "id")).to_dict()


def _why_not(select: Select, arguments: Mapping[str, Any]) -> object:
    """Why documents give no output of a query. `query` is its name; `documents` is a list of their ids, or of addresses
    or titles that only one kept document has: one for each block of the query, or fewer.

    Returns what `mmqjp.present.why_not_result.WhyNot.to_dict` does, and `WhyNot.from_dict` reads it. With an empty
    list, or without one, the question is how many of the kept documents get past each stage of the query: then it
    returns what `mmqjp.present.query_funnel.QueryFunnels.to_dict` does.
    """
    documents = arguments.get("documents") or []
    if not isinstance(documents, list) or not all(isinstance(one, str) for one in documents):
        raise BadQuestion("the documents of the question are no list of texts")
    if len(documents) > MOST_DOCUMENTS:
        raise BadQuestion(f"{len(documents)} documents are named, and {MOST_DOCUMENTS} are looked at")
    name = text_of(arguments, "query")
    return (why_not(select, name, documents) if documents else query_funnel(select, name)).to_dict()


def _explain_text(select: Select, arguments: Mapping[str, Any]) -> object:
    """How the queries of a `text` would be run, whether or not they are registered: a list for their names.

    `mmqjp.service.explained.Explained.from_dict` reads each.
    """
    text = text_of(arguments, "text")
    if len(text) > LONGEST_TEXT:
        raise BadQuestion(f"the text has {len(text):,} characters, and at most {LONGEST_TEXT:,} are explained")
    return [one.to_dict() for one in explained_text(text)]


def text_of(arguments: Mapping[str, Any], name: str) -> str:
    """Returns an argument that is text. Raises BadQuestion if it is missing or something else."""
    if not isinstance(found := arguments.get(name), str):
        raise BadQuestion(f"the question lacks its {name}")
    return found


BESIDE: Mapping[str, Look] = {WHY: _why, WHY_NOT: _why_not, EXPLAIN_TEXT: _explain_text}
"""The questions that are not in SQL."""

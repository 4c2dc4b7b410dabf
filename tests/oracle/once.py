"""ONCE PER by brute force: which outputs of a script are emitted, given its batches (docs/semantics.md, section 13)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.oracle.bindings import Answer, OutputRow, Stored
from tests.oracle.evaluation import Doc
from tests.oracle.query_answers import QueryAnswers
from xscl.check_expressions import blocks
from xscl.syntax import Once, Script


class Telling:
    """What one query has told: for each key the ends of the outputs that had it."""

    def __init__(self, once: Once | None) -> None:
        self._once = once
        self._ends: dict[tuple[str, ...], list[int]] = {}

    def told(self, answers: Iterable[Answer]) -> list[Answer]:
        """Those of the new outputs of a step that are told, in the order in which they are."""
        found = []
        for answer in sorted(answers, key=lambda one: one.order):
            if self._once is None or not all(self._was_told(key, answer.row.t1) for key in answer.keys):
                found.append(answer)
                for key in answer.keys:
                    self._ends.setdefault(key, []).append(answer.row.t1)
        return found

    def _was_told(self, key: tuple[str, ...], t1: int) -> bool:
        assert self._once is not None
        window = self._once.window
        return any(window is None or window.us is None or abs(t1 - end) <= window.us for end in self._ends.get(key, ()))

    def forget(self, before: int) -> None:
        """Forgets what no output can repeat that ends at this time or later."""
        if self._once is None or self._once.window is None or self._once.window.us is None:
            return
        for key, ends in self._ends.items():
            self._ends[key] = [end for end in ends if end + self._once.window.us >= before]


def evaluate_in_steps(script: Script, batches: Iterable[Sequence[Doc]]) -> list[OutputRow]:
    """The outputs of all queries over documents that arrive in these batches, in no particular order."""
    rows: list[OutputRow] = []
    documents: dict[str, list[Stored]] = {}
    known: set[tuple[str, str]] = set()
    queries = script.queries
    answers = [
        QueryAnswers(query, name, script.namespaces, queries[:index].count(query))
        for index, (query, name) in enumerate(zip(queries, script.names(), strict=True))
    ]
    telling, given = [Telling(query.once) for query in queries], [set[object]() for _ in queries]
    for batch in batches:
        for doc in batch:
            if (doc.stream, doc.id) not in known:
                known.add((doc.stream, doc.id))
                stored = Stored(doc.stream, doc.id, doc.t0, doc.t1, doc.xml, ((doc.id, doc.stream),))
                documents.setdefault(doc.stream, []).append(stored)
        for index in _in_order(script):
            new = [one for one in answers[index].over(documents) if (one.inputs, one.nodes) not in given[index]]
            given[index] |= {(one.inputs, one.nodes) for one in new}
            for answer in telling[index].told(new):
                rows.append(answer.row)
                if name := queries[index].publish:
                    documents.setdefault(name, []).append(answer.stored)
    return rows


def _in_order(script: Script) -> list[int]:
    """The places of the queries, each after those whose outputs it reads."""
    waiting, ordered = list(range(len(script.queries))), list[int]()
    while waiting:
        made = {script.queries[index].publish for index in waiting}
        ready = [i for i in waiting if not any(block.stream in made for block in blocks(script.queries[i].source))]
        ordered += ready
        waiting = [index for index in waiting if index not in ready]
    return ordered

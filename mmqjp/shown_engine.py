"""The engine that users import: its results render in notebooks, and it explains queries and outputs."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from feeds.documents import SourceItem
from mmqjp import engine
from mmqjp.answers.fan_out import SHOWN, Outputs, OutputStream
from mmqjp.engine import Session

WIDTH = 100

_Stream = TypeVar("_Stream", bound=OutputStream)


@dataclass(frozen=True)
class Explanation:
    """A text with its rendering in a notebook. Printed, it is the text."""

    text: str
    html: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.html


class Engine(engine.CoreEngine):
    __doc__ = engine.CoreEngine.__doc__

    def process(self, documents: Iterable[SourceItem]) -> Outputs:
        return self._shown(super().process(documents), lambda outputs: len(outputs))

    def outputs(self, after: int = -1) -> OutputStream:
        return self._shown(super().outputs(after), lambda _: self._session().count_delivered(after))

    def explain(self, name: str) -> Explanation:
        """Explains how the queries of a name run and what they share; a notebook adds a picture of their join graphs.
        Raises UnknownQuery, StoreError."""
        from mmqjp.explain.explanation import explanation
        from mmqjp.explain.pictures import join_graphs
        from mmqjp.present.terminal import explanation_html
        from mmqjp.queries.changes import unknown_query

        session = self._session()
        if not (queries := session.registry.named(name)):
            raise unknown_query(name, session.registry)
        lines = list(explanation(session, [name]))
        joins = [(name, query.text) for query in queries if not query.is_events]
        picture = join_graphs(*joins) if joins else ""
        return Explanation("\n".join(lines).rstrip(), explanation_html(lines, picture))

    def why(self, id: str | int) -> Explanation:
        """Explains an output, given its id or a unique prefix, or its number `seq`. Raises NoOutput, StoreError."""
        from rich.console import Console

        from mmqjp.present.item import TimeFormat
        from mmqjp.present.output_why import why_output
        from mmqjp.present.terminal import print_why, why_html

        found = why_output(lambda sql: self._store.question(sql).answer(), str(id))
        text = Console(file=io.StringIO(), width=WIDTH, color_system=None, force_jupyter=False)
        print_why(found, TimeFormat(), text)
        assert isinstance(text.file, io.StringIO)
        return Explanation(text.file.getvalue().rstrip(), why_html(found, TimeFormat()))

    def _shown(self, outputs: _Stream, count: Callable[[_Stream], int]) -> _Stream:
        def html() -> str | None:
            if self._is_closed:
                return None  # documents cannot be read any more

            from mmqjp.present.item import TimeFormat
            from mmqjp.present.newest import shown_outputs
            from mmqjp.present.terminal import matches_html

            matches = list(shown_outputs(self._session(), islice(outputs, SHOWN)))
            more = count(outputs) - len(matches)
            return matches_html(matches, f"{more:,} more." if more > 0 and len(matches) == SHOWN else "", TimeFormat())

        outputs.html = html
        return outputs

    def _session(self) -> Session:
        """The same engine as a session, which has no state of its own."""
        session = Session.__new__(Session)
        session.__dict__ = self.__dict__
        return session

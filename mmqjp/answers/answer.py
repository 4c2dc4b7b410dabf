"""An answer: what all queries of one form get for one choice of documents and nodes. With a query's name and id, it is
an output of that query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from common.lazy import lazy
from mmqjp.answers.output import node_order
from mmqjp.queries.model import Subscription


@dataclass(frozen=True, slots=True)
class Body:
    """An output document. If it shows the query's name, that is where `before` ends and `after` begins; otherwise
    `before` is empty, and `after` is the document."""

    before: str
    after: str

    def xml(self, name: str) -> str:
        """Returns the output document of a query. Names of queries need no escapes in XML."""
        return f"{self.before}{name}{self.after}" if self.before else self.after

    def length(self, name_length: int) -> int:
        """Returns the number of characters of the output document, given that of the query's name."""
        return len(self.before) + len(self.after) + (name_length if self.before else 0)


@dataclass(eq=False)
class Answer:
    """An answer, which is not committed yet.

    `t0`, `t1`, `documents`, `streams`, `nodes` and `nodes_json` are those of its outputs. `choice` is the part of the
    outputs' ids that they share. `recipients` are the queries that get it, and `matches` the numbers of the matches
    behind it.
    """

    t0: int
    t1: int
    documents: tuple[str, ...]
    streams: tuple[str, ...]
    nodes: Mapping[str, int | str]
    nodes_json: str
    body: Body
    choice: bytes
    recipients: Sequence[Subscription] = ()
    matches: list[int] = field(default_factory=list)

    @lazy
    def order(self) -> tuple[object, ...]:
        """Where its outputs stand among those of one query that end at the same time: by documents, nodes."""
        return self.documents, [(name, node_order(node)) for name, node in self.nodes.items()]

"""An answer: what the members of a form get for one choice of documents and nodes. With a query's name and id, it is an
output of that query."""

from __future__ import annotations

from dataclasses import dataclass, field

from mmqjp.answers.output import node_orders, read_nodes


@dataclass(frozen=True, slots=True)
class Body:
    """An output document. If it shows the query's name, that is where `before` ends and `after` begins; otherwise
    `before` is empty, and `after` is the document."""

    before: str
    after: str

    def xml(self, name: str) -> str:
        """Returns the output document of a query. Names of queries need no escapes in XML."""
        return f"{self.before}{name}{self.after}" if self.before else self.after

    def __len__(self) -> int:
        """Returns the number of characters without the query's name."""
        return len(self.before) + len(self.after)


@dataclass(eq=False, slots=True)
class Answer:
    """An answer, which is not committed yet.

    `t0`, `t1`, `documents`, `streams` and, as JSON, `nodes` are those of its outputs. `choice` is the part of the
    outputs' ids that they share. `form`, `width`, `appeared`, `first_qid`, `arrival` and the qids `withheld` say who
    gets it, as in the table `answers`. `matches` are the numbers of the matches behind it.
    """

    t0: int
    t1: int
    documents: tuple[str, ...]
    streams: tuple[str, ...]
    nodes: str
    body: Body
    choice: str
    form: str
    width: int
    appeared: int
    first_qid: int
    arrival: int
    withheld: tuple[int, ...] = ()
    matches: list[int] = field(default_factory=list)

    @property
    def order(self) -> tuple[object, ...]:
        """Where it stands among those that end at the same time: by documents, nodes, and what else differs."""
        return self.t1, self.documents, node_orders(read_nodes(self.nodes)), self.choice, self.form

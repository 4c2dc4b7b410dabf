"""Output documents: their form, their ids, and the order of output lines."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Output:
    """An output document of a query. Times are UTC microseconds.

    `documents` and `streams` have one length: the ids of the external documents behind the output, in the query's
    order, and their streams. `nodes` maps SELECT variables to nodes: an element's number in document order, or
    "owner/@name". `xml` is the output document. `id` is a digest: the same output has the same id on every engine and
    after every restart. `seq` numbers outputs consecutively in the order in which they are committed; it is -1 before
    that.
    """

    query: str
    t0: int
    t1: int
    documents: tuple[str, ...]
    streams: tuple[str, ...]
    nodes: Mapping[str, int | str]
    xml: str
    id: str = ""
    seq: int = -1

    def to_dict(self) -> dict[str, object]:
        """Returns the JSON object of an output line."""
        return {
            "id": self.id,
            "seq": self.seq,
            "query": self.query,
            "t0": self.t0,
            "t1": self.t1,
            "documents": list(self.documents),
            "streams": list(self.streams),
            "nodes": dict(self.nodes),
            "xml": self.xml,
        }


@dataclass(slots=True)
class Draft:
    """An output that is not committed yet and has no number. `matches` are the numbers of the matches behind it."""

    output: Output
    matches: list[int] = field(default_factory=list)


def numbered(drafts: Sequence[Draft], first: int) -> list[Draft]:
    """Returns drafts in the order of output lines, numbered from `first`."""
    ordered = sorted(drafts, key=lambda draft: _order(draft.output))
    return [Draft(replace(draft.output, seq=seq), draft.matches) for seq, draft in enumerate(ordered, first)]


def sorted_outputs(outputs: Iterable[Output]) -> list[Output]:
    """Returns outputs in the order of output lines: by t1, query, documents, nodes (by number, then attribute)."""
    return sorted(outputs, key=_order)


def digest(identity: Sequence[object]) -> str:
    """Returns the id of something that these JSON values identify: 32 hexadecimal digits."""
    return hashlib.sha256(json.dumps(identity, ensure_ascii=False).encode()).hexdigest()[:32]


def _order(output: Output) -> tuple[object, ...]:
    nodes = [(name, _node_order(node)) for name, node in output.nodes.items()]
    return output.t1, output.query, output.documents, nodes


def _node_order(node: int | str) -> tuple[int, str]:
    element, _, attribute = str(node).partition("/")
    return int(element), attribute

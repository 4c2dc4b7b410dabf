"""Output documents: their form, their ids, and the order of output lines."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from json.encoder import encode_basestring as json_text


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


def number(drafts: list[Draft], first: int) -> None:
    """Sorts drafts into the order of output lines, and numbers their outputs from `first`."""
    drafts.sort(key=lambda draft: _order(draft.output))
    for seq, draft in enumerate(drafts, first):
        # Outputs are frozen for everybody else. Nobody has seen these yet, and copies would cost too much.
        object.__setattr__(draft.output, "seq", seq)


def sorted_outputs(outputs: Iterable[Output]) -> list[Output]:
    """Returns outputs in the order of output lines: by t1, query, documents, nodes (by number, then attribute)."""
    return sorted(outputs, key=_order)


class Identity:
    """The part of an output's id that all outputs of one query share: the query's name, its text, and the number of
    equal queries that were registered before it."""

    def __init__(self, name: str, text: str, occurrence: int) -> None:
        query = json.dumps([name, text, occurrence], ensure_ascii=False)
        self._begun = hashlib.sha256(query.removesuffix("]").encode())

    def id(self, part_ids: str, nodes: Iterable[int | str]) -> str:
        """Returns an output's id: 32 hexadecimal digits of a digest. `part_ids` are those of its documents, as a JSON
        list; `nodes` are the values of `Output.nodes`."""
        digest = self._begun.copy()
        # The text that json.dumps would write, in a quarter of its time.
        digest.update(f", {part_ids}, [{', '.join(map(_json_node, nodes))}]]".encode())
        return digest.hexdigest()[:32]


def digest(text: str) -> str:
    """Returns the id of something that a text identifies: 32 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def json_nodes(nodes: Mapping[str, int | str]) -> str:
    """Returns `Output.nodes` as a JSON object."""
    return f"{{{', '.join(f'{json_text(name)}: {_json_node(node)}' for name, node in nodes.items())}}}"


def _json_node(node: int | str) -> str:
    return json_text(node) if isinstance(node, str) else str(node)


def _order(output: Output) -> tuple[object, ...]:
    nodes = [(name, _node_order(node)) for name, node in output.nodes.items()]
    return output.t1, output.query, output.documents, nodes


def _node_order(node: int | str) -> tuple[int, str]:
    element, _, attribute = str(node).partition("/")
    return int(element), attribute

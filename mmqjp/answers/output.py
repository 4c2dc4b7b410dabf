"""Output documents: their form, their ids, and the order of output lines."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from json.encoder import encode_basestring as json_text


@dataclass(frozen=True, slots=True)
class Output:
    """An output document of a query. Times in UTC microseconds.

    `documents` are the ids of the external documents behind it, in the query's order, `streams` theirs: both have one
    length. `nodes` are the nodes of its SELECT variables: an element's number in document order, or "owner/@name".
    `xml` is its text. `id` is a digest: the same output has the same id on every engine and after every restart.
    `seq` is its number, consecutive in the order in which outputs are committed; -1 until then.
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
        """The output as the JSON object of an output line."""
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
    """An output that is not committed yet: it has no number. `matches` are the numbers of the matches it is of."""

    output: Output
    matches: list[int] = field(default_factory=list)


def number(drafts: list[Draft], first: int) -> None:
    """Puts drafts into the order of output lines, and gives their outputs numbers from `first` on."""
    drafts.sort(key=lambda draft: _order(draft.output))
    for seq, draft in enumerate(drafts, first):
        # Frozen is what others see; nobody has seen it yet, and a copy would cost as much as all else here.
        object.__setattr__(draft.output, "seq", seq)


def sorted_outputs(outputs: Iterable[Output]) -> list[Output]:
    """Outputs in the order of output lines: by t1, query, documents, nodes (by number, then attribute)."""
    return sorted(outputs, key=_order)


class Identity:
    """What the outputs of one query have in common in their ids, which are digests of 32 hexadecimal digits: its name
    and text, and how many equal queries were registered before it."""

    def __init__(self, name: str, text: str, occurrence: int) -> None:
        query = json.dumps([name, text, occurrence], ensure_ascii=False)
        self._begun = hashlib.sha256(query.removesuffix("]").encode())

    def id(self, part_ids: Iterable[str], nodes: Iterable[int | str]) -> str:
        """The id of an output: a digest of the query, the documents, and the nodes as `Output.nodes` has them."""
        digest = self._begun.copy()
        # What json.dumps writes, in a quarter of its time.
        digest.update(f", [{', '.join(map(json_text, part_ids))}], [{', '.join(map(_json_node, nodes))}]]".encode())
        return digest.hexdigest()[:32]


def digest(text: str) -> str:
    """The id of what is told apart by a text: 32 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def json_nodes(nodes: Mapping[str, int | str]) -> str:
    """`Output.nodes` as a JSON object."""
    return f"{{{', '.join(f'{json_text(name)}: {_json_node(node)}' for name, node in nodes.items())}}}"


def _json_node(node: int | str) -> str:
    return json_text(node) if isinstance(node, str) else str(node)


def _order(output: Output) -> tuple[object, ...]:
    nodes = [(name, _node_order(node)) for name, node in output.nodes.items()]
    return output.t1, output.query, output.documents, nodes


def _node_order(node: int | str) -> tuple[int, str]:
    element, _, attribute = str(node).partition("/")
    return int(element), attribute

"""Output documents: their form, and the order of output lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Output:
    """An output document of a query. Times in UTC microseconds.

    `documents` are the ids of the external documents behind it, in the query's order, `streams` theirs; `nodes` the
    nodes of its SELECT variables: an element's number in document order, or "owner/@name"; `xml` its text.
    """

    query: str
    t0: int
    t1: int
    documents: tuple[str, ...]
    streams: tuple[str, ...]
    nodes: Mapping[str, int | str]
    xml: str

    def to_dict(self) -> dict[str, object]:
        """The output as the JSON object of an output line."""
        return {
            "query": self.query,
            "t0": self.t0,
            "t1": self.t1,
            "documents": list(self.documents),
            "streams": list(self.streams),
            "nodes": dict(self.nodes),
            "xml": self.xml,
        }


def sorted_outputs(outputs: Iterable[Output]) -> list[Output]:
    """Outputs in the order of output lines: by t1, query, documents, nodes (by number, then attribute)."""

    def node(value: int | str) -> tuple[int, str]:
        element, _, attribute = str(value).partition("/")
        return int(element), attribute

    return sorted(outputs, key=lambda o: (o.t1, o.query, o.documents, [(k, node(v)) for k, v in o.nodes.items()]))

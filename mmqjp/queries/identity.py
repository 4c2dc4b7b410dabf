"""The ids of outputs: digests that are the same on every engine and after every restart."""

from __future__ import annotations

import hashlib
import json


class Identity:
    """The part of an output's id that all outputs of one query share: the query's name, its text, and the number of
    equal queries that were registered before it."""

    __slots__ = ("_begun",)

    def __init__(self, name: str, text: str, occurrence: int) -> None:
        query = json.dumps([name, text, occurrence], ensure_ascii=False)
        self._begun = hashlib.sha256(query.removesuffix("]").encode())

    def id(self, choice: bytes) -> str:
        """Returns an output's id: 32 hexadecimal digits of a digest. `choice` is what `choice_bytes` returns."""
        digest = self._begun.copy()
        digest.update(choice)
        return digest.hexdigest()[:32]


def choice_bytes(part_ids: str, nodes: str) -> bytes:
    """Returns the part of an output's id that the equal outputs of all queries share.

    `part_ids` are those of its documents, and `nodes` the values of `Output.nodes`, both as JSON lists.
    """
    return f", {part_ids}, {nodes}]".encode()


def digest(text: str) -> str:
    """Returns the id of something that a text identifies: 32 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]

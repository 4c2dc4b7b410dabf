"""The ids of outputs and forms: digests that are the same on every engine and after every restart."""

from __future__ import annotations

import hashlib
from json.encoder import encode_basestring


class Identity:
    """The part of an output's id that all outputs of one query share. `text` has the query's name, its text, and the
    number of equal queries that were registered before it: the beginning of a JSON list."""

    __slots__ = ("_begun", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._begun: hashlib._Hash | None = None

    @classmethod
    def of(cls, name: str, text: str, occurrence: int) -> Identity:
        """Returns the identity of a query."""
        return cls(f"[{encode_basestring(name)}, {encode_basestring(text)}, {occurrence}")

    def __reduce__(self) -> tuple[type[Identity], tuple[str]]:
        return Identity, (self.text,)

    def id(self, choice: bytes) -> str:
        """Returns an output's id: 32 hexadecimal digits of a digest. `choice` is what `choice_of` returns, encoded."""
        if self._begun is None:  # very many queries have no output
            self._begun = hashlib.sha256(self.text.encode())
        digest = self._begun.copy()
        digest.update(choice)
        return digest.hexdigest()[:32]


def choice_of(part_ids: str, nodes: str) -> str:
    """Returns the part of an output's id that the equal outputs of all queries share: the end of the JSON list.

    `part_ids` are those of its documents, and `nodes` the values of `Output.nodes`, both as JSON lists.
    """
    return f", {part_ids}, {nodes}]"


def digest(text: str) -> str:
    """Returns the id of something that a text identifies: 32 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]

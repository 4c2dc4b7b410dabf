"""Groups: the outputs of one message of a sink."""

from __future__ import annotations

from hashlib import sha256

from mmqjp.answers.output import Output
from mmqjp.sinks.message import ID_PREFIX

MOST_CHARACTERS = 4 << 20
"""A group shows no more characters of XML than this, unless its first output alone has more."""


class Group:
    """Wanted outputs that are told together. It keeps the first `most` of them, and counts the others.

    `first` and `last` are the numbers of the first and the last one. `opened` is when the first one was committed, and
    `newest` the latest such time. `t0` is the least of theirs. `is_fixed` says that none can join any more.
    """

    __slots__ = ("_ids", "closes", "count", "first", "is_fixed", "last", "newest", "opened", "outputs", "size", "t0")

    def __init__(self, output: Output, opened: int, closes: int) -> None:
        self.first = self.last = output.seq
        self.opened = self.newest = opened
        self.closes, self.count, self.t0 = closes, 1, output.t0
        self.outputs, self.size = [output], len(output.xml)
        self.is_fixed = closes <= opened
        self._ids = sha256(output.id.encode())

    def add(self, output: Output, committed_at: int, most: int) -> int:
        """Adds an output, and returns how many characters are kept of it."""
        self.last, self.count = output.seq, self.count + 1
        self.newest, self.t0 = max(self.newest, committed_at), min(self.t0, output.t0)
        self._ids.update(b" " + output.id.encode())
        if self.is_filled(most) or self.size + len(output.xml) > MOST_CHARACTERS:
            self.size = max(self.size, MOST_CHARACTERS)  # those that follow are counted, even if they are short
            return 0
        self.outputs.append(output)
        self.size += len(output.xml)
        return len(output.xml)

    def is_filled(self, most: int) -> bool:
        """Whether what joins is only counted."""
        return len(self.outputs) >= most or self.size >= MOST_CHARACTERS

    @property
    def more(self) -> int:
        """How many outputs are only counted."""
        return self.count - len(self.outputs)

    @property
    def id(self) -> str:
        """The id of the message: made of that of its output, or a digest of the ids of all, with spaces between."""
        return ID_PREFIX + (self.outputs[0].id if self.count == 1 else self._ids.hexdigest()[:32])

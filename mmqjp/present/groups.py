"""Groups matches by query, newest first. Keeps them in a temporary file: there may be more than fit in memory."""

from __future__ import annotations

import json
import tempfile
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Self

from mmqjp.present.match import Match


@dataclass(frozen=True, slots=True)
class Group:
    """The matches of a query. `matches` yields them, newest first."""

    name: str
    spool: Spool

    def __len__(self) -> int:
        return len(self.spool.offsets[self.name])

    @property
    def matches(self) -> Iterator[Match]:
        """Yields the matches by t1, then seq, the last ones first."""
        return self.spool.read(self.name)


class Spool:
    """Matches in a temporary file, until `close`."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        self.offsets: dict[str, array[int]] = {}
        self._times: dict[str, array[int]] = {}
        self.most_documents = 0
        """The greatest number of documents behind a match."""

    def add(self, matches: Iterable[Match]) -> Self:
        """Adds matches, in the order of seq."""
        offset = 0
        for match in matches:
            name = match.output.query
            self.offsets.setdefault(name, array("q")).append(offset)
            self._times.setdefault(name, array("q")).append(match.output.t1)
            offset += self._file.write(json.dumps(match.to_dict(), ensure_ascii=False).encode() + b"\n")
            self.most_documents = max(self.most_documents, len(match.items))
        self._file.flush()
        return self

    def groups(self) -> list[Group]:
        """Returns the groups in the order of their names."""
        return [Group(name, self) for name in sorted(self.offsets)]

    def read(self, name: str) -> Iterator[Match]:
        """Yields the matches of a query, newest first."""
        offsets, times = self.offsets[name], self._times[name]
        for place in sorted(range(len(offsets)), key=lambda place: (times[place], offsets[place]), reverse=True):
            self._file.seek(offsets[place])
            yield _match(self._file.readline())

    def all(self) -> Iterator[Match]:
        """Yields all matches, in the order in which they were added."""
        self._file.seek(0)
        yield from map(_match, self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _match(line: bytes) -> Match:
    return Match.from_dict(json.loads(line))

"""Outputs that are made when they are asked for, some at a time: those of a batch, and stored ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol, overload

from mmqjp.answers.fan_out import OutputChunk, OutputLines
from mmqjp.answers.output import Output

SHOWN = 20
"""The most outputs that `repr` shows: there may be more than fit in memory."""


class Chunk(Protocol):
    """Some outputs."""

    def __len__(self) -> int: ...

    def outputs(self) -> Iterator[Output]:
        """Yields the outputs."""

    def lines(self) -> OutputLines:
        """Returns the output lines."""


class OutputStream(Iterable[Output]):
    """Outputs that are made each time they are iterated over."""

    def __init__(self, chunks: Callable[[], Iterator[Chunk]]) -> None:
        self.chunks = chunks
        """Makes the outputs, some at a time."""
        self.html: Callable[[], str | None] = lambda: None
        """Makes what a notebook shows; None for the text of `repr`."""

    def __repr__(self) -> str:
        found = [repr(output) for output in islice(self, SHOWN + 1)]
        return f"[{', '.join([*found[:SHOWN], *(['more'] if len(found) > SHOWN else [])])}]"

    def _repr_html_(self) -> str | None:
        return self.html()

    def __iter__(self) -> Iterator[Output]:
        for chunk in self.chunks():
            yield from chunk.outputs()

    def lines(self) -> Iterator[OutputLines]:
        """Yields the output lines, some at a time: about three times as fast as a line an output."""
        return (chunk.lines() for chunk in self.chunks())


class Outputs(OutputStream, Sequence[Output]):
    """The outputs of a batch, in the order of output lines."""

    def __init__(self, chunks: Callable[[], Iterator[OutputChunk]] = lambda: iter(()), count: int = 0) -> None:
        """`chunks` makes the outputs, and `count` is their number."""
        super().__init__(chunks)
        self._made, self._count = chunks, count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> Output: ...
    @overload
    def __getitem__(self, place: slice) -> list[Output]: ...
    def __getitem__(self, place: int | slice) -> Output | list[Output]:
        count = len(self)
        if isinstance(place, slice):
            places = range(*place.indices(count))
            upwards = places if places.step > 0 else places[::-1]
            found = list(islice(self, upwards.start, upwards.stop, upwards.step)) if places else []
            return found if places.step > 0 else found[::-1]
        if not -count <= place < count:
            raise IndexError(place)
        place %= count
        for chunk in self._made():
            if place < len(chunk):
                return chunk.output(place)
            place -= len(chunk)
        raise AssertionError("there are as many outputs as were counted")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (Outputs, list)) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as lists have none

    def __add__(self, other: Iterable[Output]) -> list[Output]:
        return [*self, *other]

    def __radd__(self, other: Iterable[Output]) -> list[Output]:
        return [*other, *self]

    def __repr__(self) -> str:
        more = [f"{len(self) - SHOWN:,} more"] if len(self) > SHOWN else []
        return f"[{', '.join([*map(repr, self[:SHOWN]), *more])}]"


def lines_of(outputs: Iterable[Output]) -> Iterator[OutputLines]:
    """Yields the output lines of outputs."""
    if isinstance(outputs, OutputStream):
        yield from outputs.lines()
    else:
        for output in outputs:
            yield OutputLines(output.to_line(), 1, output.seq)

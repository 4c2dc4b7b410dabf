"""Numbered events as columns: blocks of those of one stream and kind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pattern_stage.columns import Ints


@dataclass(frozen=True, slots=True)
class Block:
    """Events of one stream and of one kind, whose numbers ascend. `refers` has as many columns as
    one of them needs, -1 where another needs fewer."""

    stream: str
    numbers: Ints
    docids: Ints
    t0: Ints
    t1: Ints
    refers: Ints

    def take(self, places: Ints) -> Block:
        """Returns the events at these places."""
        return replace(
            self,
            numbers=self.numbers[places],
            docids=self.docids[places],
            t0=self.t0[places],
            t1=self.t1[places],
            refers=self.refers[places],
        )


def merged(blocks: Iterable[Block]) -> list[Block]:
    """Returns blocks with one for each kind: those of one stream and width."""
    kinds: dict[tuple[str, int, int], list[Block]] = {}
    for block in blocks:
        kinds.setdefault((block.stream, min(int(block.docids[0]), 0), block.refers.shape[1]), []).append(block)
    return [_joined(parts) if len(parts) > 1 else parts[0] for parts in kinds.values()]


def _joined(parts: Sequence[Block]) -> Block:
    def column(name: str) -> Ints:
        return np.concatenate([getattr(part, name) for part in parts])

    block = Block(parts[0].stream, column("numbers"), column("docids"), column("t0"), column("t1"), column("refers"))
    ascends = (block.numbers[1:] > block.numbers[:-1]).all()
    return block if ascends else block.take(np.argsort(block.numbers))

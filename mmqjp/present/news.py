"""What is new in a store, to be remembered, and up to where a store is known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from mmqjp.present.answer_table import AnswerTable
from mmqjp.present.recent_rows import Block
from mmqjp.present.recipients import Members

MOST_NEW = 20_000
"""If there are more new answers, or some were dropped, so many of the newest are read instead."""

MOST_NEW_DOCUMENTS, MOST_NEW_TEXTS = 20_000, 20_000
"""So many of the newest documents are remembered, and of the XML of the newest answers."""

CHANGED = ("memberships", "removed_queries", "pauses")
"""The tables that get a row when queries are registered or paused."""


class Known(NamedTuple):
    """Up to where a store is known: its newest batch, and the greatest numbers of a document, an answer and an output;
    how many answers and documents there were.

    There are other members when `registered` is another number, and other queries are registered or paused when
    `changes` has another value. `numbers` is what the ledger notes. There are outputs of former formats if it
    `has_earlier`, and some are withheld if `are_withheld`. The store tells what it commits after the `mark`.
    """

    batch: int = -1
    docid: int = -1
    answer: int = -1
    seq: int = -1
    answers: int = 0
    documents: int = 0
    registered: int = -1
    changes: tuple[int, int | None] = (-1, None)
    numbers: str | None = None
    has_earlier: bool = False
    are_withheld: bool = False
    mark: int = -1


@dataclass(slots=True)
class News:
    """What is new, and up to where the store is `known` with it.

    - Something `is_dropped` of what was known.
    - `members` are there if they are others than before, and have names that were first `added` at some time. None of
      them are remembered if they `are_many`.
    - `answers` are the new ones; None if there are none, or if they are too large together. With `is_first`, they are
      the newest, of which the first batch may be there in part unless they are all: `is_all`.
    - `documents` and `texts` are rows of new documents, and the XML of new answers; None if they are too large.
    """

    known: Known
    is_dropped: bool = False
    is_first: bool = False
    are_many: bool = False
    members: Members | None = None
    added: dict[str, int] = field(default_factory=dict)
    answers: AnswerTable | None = None
    is_all: bool = False
    documents: list[Block] | None = None
    texts: list[Block] | None = None

"""What a step of the pipeline gives: its answers, and the queries to pause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mmqjp.answers.answer import Answer
from mmqjp.answers.usage import Cutoff
from mmqjp.queries.members import Members
from mmqjp.queries.model import Subscription


class QuotaExceeded(Exception):
    """Queries exceeded their quotas, so the step has to run again with `cutoffs`, by qid. Never leaves
    `mmqjp.answers`."""

    def __init__(self, cutoffs: dict[int, Cutoff]) -> None:
        super().__init__(f"{len(cutoffs)} queries exceeded a bound")
        self.cutoffs = cutoffs


@dataclass(frozen=True, slots=True)
class Pause:
    """A query that a step paused: the last document that it sees, the arrival from which on it gets nothing, and the
    reason."""

    query: Subscription
    docid: int
    arrival: int
    reason: str


@dataclass(frozen=True, slots=True)
class Answered:
    """The result of a step: its answers, the members of their forms, by id, and the queries to pause."""

    answers: list[Answer]
    members: Mapping[str, Members]
    pauses: list[Pause]

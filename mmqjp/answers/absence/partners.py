"""Partners: whether a joint binding of a left document has one among the sightings of its right inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import merge
from itertools import chain, product
from typing import NamedTuple

from mmqjp.answers.absence.sightings import Sighting, Sightings
from mmqjp.answers.absence.words_in_order import WordsInOrder
from mmqjp.answers.construct import Value
from mmqjp.answers.joint import CHARACTERS_READ_PER_STEP, JointBinding
from mmqjp.answers.operators import value_of
from mmqjp.answers.quota import Steps
from mmqjp.answers.residual import holds
from mmqjp.answers.telling import Key, key_of
from mmqjp.documents.record import Record
from mmqjp.documents.records import StoredRecords
from xpath_stage.binder import Node, Part, each_binding
from xscl.algebra.functions import many_valued
from xscl.algebra.normal import Absent, JoinOp, Term, variables_of
from xscl.algebra.pattern import PatternNode, Test
from xscl.algebra.word_numbers import have_enough_in_common

_ANY = Test("element", "*", "*")


@dataclass(frozen=True, eq=False)
class Watched:
    """One disjunct of what must not be, with the sightings of its right input."""

    absent: Absent
    sightings: Sightings

    @cached_property
    def paths(self) -> list[tuple[str, Part]]:
        """The paths on left variables: each variable, and the pattern whose top is its node."""
        branches = self.absent.branches
        return [(one.var, Part(PatternNode("//", _ANY, children=(one.path,)))) for one in branches]

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """The left terms of its equalities."""
        return tuple(left for left, _ in self.absent.joins)

    @cached_property
    def place_of(self) -> Mapping[str, int]:
        """The place in a sighting's `bound` of each right variable that other conditions need."""
        return {var: place for place, var in enumerate(kept_variables(self.absent))}


def kept_variables(absent: Absent) -> tuple[str, ...]:
    """The variables of the right input that other conditions than equalities need."""
    of_right = set(absent.right.variables())
    return tuple(dict.fromkeys(var for expr in absent.residual for var in variables_of(expr) if var in of_right))


class Wanted(NamedTuple):
    """What a partner has: one of some keys. If it is found by near(), `words` are those of which it has enough, as
    `xscl.algebra.word_numbers` tells them."""

    keys: Sequence[Key]
    words: str = ""


def wanted(
    records: StoredRecords, order: WordsInOrder, binding: JointBinding, terms: Sequence[Term], steps: Steps
) -> Wanted:
    """Returns what a partner has in common with the values of terms."""
    texts = [value_of(records, binding, term).text() for term in terms]
    steps.take(1 + sum(map(len, texts)) // CHARACTERS_READ_PER_STEP)
    if many_valued(terms[0].functions) is None:
        return Wanted((key_of(texts),))
    (words,) = texts  # what is found by near() has no equality beside it
    return Wanted(order.keys_of(words), words)


@dataclass(slots=True)
class Partners:
    """Finds partners. `watched` are the disjuncts of one absence. `in_vain` counts the steps that sightings took which
    are none."""

    records: StoredRecords
    order: WordsInOrder
    op: JoinOp
    window: int
    watched: Sequence[Watched]
    in_vain: int = 0

    def first(self, record: Record, binding: JointBinding, after: int, steps: Steps) -> Sighting | None:
        """Returns a partner of a joint binding in a left document that appeared after a document; None if there is
        none."""
        left = record.t0, record.t1, record.docid
        for watched in self.watched:
            for joint in self._with_paths(watched, binding, steps):
                having = wanted(self.records, self.order, joint, watched.terms, steps)
                for sighting in self._having(having, watched.sightings, left, after):
                    before = steps.left
                    steps.take()
                    if self._holds(watched, joint, sighting, steps):
                        return sighting
                    self.in_vain += before - steps.left
        return None

    def _having(
        self, having: Wanted, sightings: Sightings, left: tuple[int, int, int], after: int
    ) -> Iterator[Sighting]:
        """Yields the partners in time that have what is wanted, each once, the nearest ones first, whatever the order
        of words. Those that have a key and not enough words take no step: they depend on this order."""
        found = [sightings.partners(key, self.op, self.window, left, after) for key in having.keys]
        if not having.words:
            yield from chain.from_iterable(found)
            return
        last: Sighting | None = None
        for sighting in merge(*found, reverse=self.op == "NOT PRECEDED BY"):
            if sighting != last and have_enough_in_common(having.words, sighting.words):
                yield sighting
            last = sighting

    def _with_paths(self, watched: Watched, binding: JointBinding, steps: Steps) -> Iterator[JointBinding]:
        """Yields the binding with each choice of nodes at the ends of paths."""
        if not watched.paths:
            yield binding
            return
        ends: list[list[tuple[str, tuple[Record, Node]]]] = []
        for var, path in watched.paths:
            value = value_of(self.records, binding, Term(var))
            found = each_binding(path, value.record.tree, {(): value.node}, steps.take)
            ends.append([(end, (value.record, node)) for one in found for end, node in one])
        for choice in product(*ends):
            steps.take()
            yield {**binding, **dict(choice)}

    def _holds(self, watched: Watched, joint: JointBinding, sighting: Sighting, steps: Steps) -> bool:
        residual = watched.absent.residual
        return not residual or all(holds(expr, self._texts(watched, joint, sighting, steps)) for expr in residual)

    def _texts(self, watched: Watched, joint: JointBinding, sighting: Sighting, steps: Steps) -> Callable[[str], str]:
        def text_of(var: str) -> str:
            if var in joint:
                value = value_of(self.records, joint, Term(var))
            else:
                docid, node = sighting.bound[watched.place_of[var]]
                value = Value(self.records[docid], node)
            text = value.text()
            steps.take(len(text) // CHARACTERS_READ_PER_STEP)
            return text

        return text_of

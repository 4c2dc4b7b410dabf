"""Partner search for absences. Right matches ("sightings") are indexed by the values that a partner must share, so a
lookup reads the nearest sighting of those values, not all pairs; with equalities alone, the first one in time decides.
near() uses prefix keys in a word order that is learnt from the first texts and then frozen."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from heapq import merge
from itertools import chain, product
from typing import NamedTuple, TypeVar

from common.bounds import EARLIEST, INFINITE, LATEST, deadline
from join_stage import near
from join_stage.near import learnt
from mmqjp.answers.matches import CHARACTERS_READ_PER_STEP, JointBinding, read_value, residual_holds
from mmqjp.answers.operators import OnceKey, once_key, value_of
from mmqjp.answers.output import BoundValue
from mmqjp.answers.quota import Steps
from mmqjp.documents.record import Record, StoredRecords
from mmqjp.queries.forms import TargetGroup
from mmqjp.queries.model import HiddenStream, Owner, Subscription
from mmqjp.queries.registry import Registry, behind
from xpath_stage.binder import Node, PreparedNode, each_binding
from xscl.algebra.joins import NEGATED, Absent, JoinOp, Term, variables_of
from xscl.algebra.trees import PatternNode, Test
from xscl.algebra.values import many_valued
from xscl.algebra.words import THRESHOLD, as_digits, first_keys, have_enough_in_common


class AbsenceGroup(NamedTuple):
    """What determines the deadline of absences. Times are in microseconds."""

    row: int
    """Of the left input."""
    op: JoinOp
    window: int
    right_stream: str

    def decided_before(self, watermark: int) -> int:
        """Returns the time before which left documents begin whose partners would be late at a watermark."""
        if watermark <= EARLIEST:
            return EARLIEST
        if watermark >= LATEST:
            return LATEST
        return watermark + 1 if self.op == "NOT PRECEDED BY" else watermark - self.window

    def decided_at(self, t0: int) -> int:
        return t0 if self.op == "NOT PRECEDED BY" else deadline(t0, self.window) + 1

    def partners_from(self, t1: int) -> int:
        """Returns the earliest start of a partner of a left document that ends at `t1`."""
        if self.op == "NOT FOLLOWED BY":
            return t1 + 1
        return EARLIEST if self.window == INFINITE else t1 - self.window

    def needed_from(self, left: int, right: int) -> int:
        """Returns the earliest start of right documents to retain at watermarks `left` and `right`, for left documents
        still to come and those that wait."""
        if min(left, right) <= EARLIEST or self.window == INFINITE:
            return EARLIEST
        waiting = right if self.op == "NOT PRECEDED BY" else right - self.window
        return min(self.partners_from(left - 1), self.partners_from(waiting - 1))


_Match = TypeVar("_Match", "LeftMatch", "RightMatch")


class LeftMatch(NamedTuple):
    """A match of a left input: start time, document, and nodes in the template's numbering."""

    t0: int
    docid: int
    nodes: tuple[int, ...]


def _add(found: list[_Match], one: _Match, undo: ExitStack) -> bool:
    """Adds a match to sorted ones, unless it is one of them, and to `undo` its removal. Returns whether it did."""
    place = len(found) if not found or found[-1] < one else bisect_left(found, one)
    if place < len(found) and found[place] == one:
        return False
    found.insert(place, one)
    undo.callback(_remove, found, one)
    return True


def _remove(found: list[_Match], one: _Match) -> None:
    del found[bisect_left(found, one)]


class LeftMatches:
    """Left matches of a row of R_T by time, shared by all absences with this left input."""

    def __init__(self, *, is_whole: bool) -> None:
        self._entries: list[LeftMatch] = []
        self.fresh: list[LeftMatch] = []
        """Added in the running batch."""
        self.is_whole = is_whole
        """Whether matches from before the engine was opened are loaded."""

    def add(self, entry: LeftMatch, undo: ExitStack) -> None:
        if _add(self._entries, entry, undo):
            self.fresh.append(entry)

    def between(self, low: int, high: int) -> list[LeftMatch]:
        return self._entries[bisect_left(self._entries, (low,)) : bisect_left(self._entries, (high,))]

    def drop_before(self, time: int, is_needed: Callable[[LeftMatch], bool]) -> None:
        place = bisect_left(self._entries, (time,))
        self._entries[:place] = filter(is_needed, self._entries[:place])


WORDS = "absence_words"
"""Setting that holds the numbers of the most frequent words."""


class WordsInOrder:
    """Derives a text's index keys from a word order: longest words first until enough distinct texts were seen, rarest
    first from then on. The order affects speed only, never results."""

    def __init__(self, setting: str | None) -> None:
        self._places = None if setting is None else _places(setting)
        self._texts: dict[str, str] = {}
        self._next: dict[str, int] | None = None

    def keys_of(self, words: str) -> list[OnceKey]:
        """Returns the keys of a text, given its words as `xscl.algebra.words` returns them."""
        keys = first_keys(words, self._places or {}) if words else []
        return [(int(key[0] + key[2]), int(key[THRESHOLD:], 16)) for key in keys]

    def see(self, words: str) -> None:
        if self._places is None and len(self._texts) < near.ENOUGH:
            self._texts[words[THRESHOLD:]] = words

    def new_setting(self) -> str | None:
        """Learns the order if due; returns the setting to store with the running batch."""
        if self._places is not None or len(self._texts) < near.ENOUGH:
            return None
        setting = json.dumps(learnt(self._texts.values()).frequent.tolist())
        self._next = _places(setting)
        return setting

    def finish_batch(self, *, committed: bool) -> bool:
        """Returns whether the order, and with it every key, has changed."""
        new, self._next = self._next, None
        if new is None or not committed:
            return False
        self._places = new
        self._texts.clear()
        return True


def _places(setting: str) -> dict[str, int]:
    return {as_digits(number): place for place, number in enumerate(json.loads(setting))}


class RightMatch(NamedTuple):
    """A matching right document, with its appearance (see `mmqjp.documents.record.Record`). `bound` has the document
    and node of each variable that other conditions than equalities need; `words` are its index words if near() finds
    it."""

    t0: int
    t1: int
    docid: int
    appeared: int
    bound: tuple[tuple[int, Node], ...] = ()
    words: str = ""


class Sightings:
    """Right matches of one input, by time and key."""

    def __init__(self) -> None:
        self._by_key: dict[OnceKey, list[RightMatch]] = {}
        self._latest: dict[OnceKey, int] = {}
        self.cut = EARLIEST
        """Sightings that begin earlier may have been evicted."""
        self.earlier_from = LATEST
        """Documents from before the engine was opened are loaded from this start time on."""

    def add(self, key: OnceKey, one: RightMatch, undo: ExitStack) -> None:
        if _add(self._by_key.setdefault(key, []), one, undo):
            self._latest[key] = max(self._latest.get(key, -1), one.appeared)

    def partners(
        self, key: OnceKey, op: JoinOp, window: int, left: tuple[int, int, int], after: int
    ) -> Iterator[RightMatch]:
        """Yields the sightings with a key that are partners in time of `left` (t0, t1, docid) and appeared after
        document `after`; nearest first where the operator is one-directional."""
        if self._latest.get(key, -1) <= after:
            return
        found = self._by_key[key]
        t0, t1, docid = left
        if op == "NOT PRECEDED BY":
            least = EARLIEST if window == INFINITE else t1 - window
            for place in range(bisect_left(found, (t0,)) - 1, -1, -1):
                one = found[place]
                if one.t0 < least:
                    return
                if one.t1 < t0 and one.appeared > after:
                    yield one
            return
        begin = bisect_right(found, (t1, LATEST)) if op == "NOT FOLLOWED BY" else bisect_left(found, (t1 - window,))
        for place in range(begin, len(found)):
            one = found[place]
            if one.t0 > t0 + window:
                return
            if op == "NOT JOIN" and (one.docid == docid or max(t1, one.t1) - min(t0, one.t0) > window):
                continue
            if one.t1 <= t0 + window and one.appeared > after:
                yield one

    def drop_before(self, cut: int) -> None:
        for key, found in list(self._by_key.items()):
            place = bisect_left(found, (cut,))
            if place == len(found):
                del self._by_key[key], self._latest[key]
            elif place:
                del found[:place]
        self.cut = cut
        self.earlier_from = max(self.earlier_from, cut)

    def rekey(self, keys_of: Callable[[str], Sequence[OnceKey]]) -> None:
        """Re-indexes sightings that near() finds, after the word order has changed."""
        found = {one for some in self._by_key.values() for one in some if one.words}
        if not found:
            return
        self._by_key, self._latest = {}, {}
        for one in sorted(found):
            for key in keys_of(one.words):
                self.add(key, one, ExitStack())  # after a commit, so nothing is undone


_ANY = Test("element", "*", "*")


@dataclass(eq=False)
class AbsenceDisjunct:
    """What an absence looks for: matches of `part` of a `row`. Equal right inputs share `sightings`."""

    row: int
    part: TargetGroup
    absent: Absent
    sightings: Sightings

    @cached_property
    def paths(self) -> list[tuple[str, PreparedNode]]:
        """Paths on left variables: each variable, and a pattern whose root is its node."""
        branches = self.absent.branches
        return [(one.var, PreparedNode(PatternNode("//", _ANY, children=(one.path,)))) for one in branches]

    @cached_property
    def left_terms(self) -> tuple[Term, ...]:
        return tuple(left for left, _ in self.absent.joins)

    @cached_property
    def right_terms(self) -> tuple[Term, ...]:
        """Those of a sighting's key."""
        return tuple(right for _, right in self.absent.joins)

    @cached_property
    def bound(self) -> Mapping[str, int]:
        """Index in a sighting's `bound` by right variable."""
        of_right = set(self.absent.right.variables())
        read = (var for expr in self.absent.residual for var in variables_of(expr) if var in of_right)
        return {var: place for place, var in enumerate(dict.fromkeys(read))}


class PartnerKeys(NamedTuple):
    """A partner has one of these keys and, for near(), enough of `words` (see `xscl.algebra.words`)."""

    keys: Sequence[OnceKey]
    words: str = ""


def wanted(
    records: StoredRecords, order: WordsInOrder, binding: JointBinding, terms: Sequence[Term], steps: Steps
) -> PartnerKeys:
    """Returns the keys that a partner shares with the values of terms."""
    texts = [value_of(records, binding, term).text() for term in terms]
    steps.take(1 + sum(map(len, texts)) // CHARACTERS_READ_PER_STEP)
    if many_valued(terms[0].functions) is None:
        return PartnerKeys((once_key(texts),))
    (words,) = texts  # what is found by near() has no equality beside it
    return PartnerKeys(order.keys_of(words), words)


@dataclass(slots=True)
class Partners:
    """Finds partners of one absence. `in_vain` counts steps spent on sightings that are none."""

    records: StoredRecords
    order: WordsInOrder
    op: JoinOp
    window: int
    watched: Sequence[AbsenceDisjunct]
    in_vain: int = 0

    def first(self, record: Record, binding: JointBinding, after: int, steps: Steps) -> RightMatch | None:
        """Returns a partner of a joint binding that appeared after document `after`, or None."""
        left = record.t0, record.t1, record.docid
        for watched in self.watched:
            for joint in self._with_paths(watched, binding, steps):
                having = wanted(self.records, self.order, joint, watched.left_terms, steps)
                for sighting in self._having(having, watched.sightings, left, after):
                    before = steps.left
                    steps.take()
                    if self._holds(watched, joint, sighting, steps):
                        return sighting
                    self.in_vain += before - steps.left
        return None

    def _having(
        self, having: PartnerKeys, sightings: Sightings, left: tuple[int, int, int], after: int
    ) -> Iterator[RightMatch]:
        """Yields the partners in time with matching keys, each once and nearest first whatever the word order. A key
        hit without enough words costs no step, because it depends on that order."""
        found = [sightings.partners(key, self.op, self.window, left, after) for key in having.keys]
        if not having.words:
            yield from chain.from_iterable(found)
            return
        last: RightMatch | None = None
        for sighting in merge(*found, reverse=self.op == "NOT PRECEDED BY"):
            if sighting != last and have_enough_in_common(having.words, sighting.words):
                yield sighting
            last = sighting

    def _with_paths(self, watched: AbsenceDisjunct, binding: JointBinding, steps: Steps) -> Iterator[JointBinding]:
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

    def _holds(self, watched: AbsenceDisjunct, joint: JointBinding, sighting: RightMatch, steps: Steps) -> bool:
        def text_of(var: str) -> str:
            if var in joint:
                value = value_of(self.records, joint, Term(var))
            else:
                docid, node = sighting.bound[watched.bound[var]]
                value = BoundValue(self.records[docid], node)
            return read_value(value, steps)

        return all(residual_holds(expr, text_of) for expr in watched.absent.residual)


@dataclass(frozen=True, eq=False)
class LeftPlan:
    """An absence of a form's queries or of a hidden stream."""

    group: AbsenceGroup
    part: TargetGroup
    left_stream: str
    watched: Sequence[AbsenceDisjunct]

    @property
    def owner(self) -> Owner:
        return self.part.first.owner


class Plans:
    """Plans of all absences, rebuilt when queries change."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._version = -1
        self._sightings: dict[object, Sightings] = {}
        self._groups: dict[AbsenceGroup, list[LeftPlan]] = {}
        self._rights: dict[TargetGroup, AbsenceDisjunct] = {}
        self._behind: dict[TargetGroup, tuple[frozenset[str], frozenset[HiddenStream]]] = {}

    @property
    def groups(self) -> dict[AbsenceGroup, list[LeftPlan]]:
        self._follow()
        return self._groups

    def right(self, part: TargetGroup) -> AbsenceDisjunct:
        self._follow()
        return self._rights[part]

    def sightings(self) -> Iterator[tuple[Sightings, list[LeftPlan]]]:
        """Yields the sightings with the absences that share them."""
        users: dict[int, tuple[Sightings, list[LeftPlan]]] = {}
        for plans in self.groups.values():
            for plan in plans:
                for right in plan.watched:
                    users.setdefault(id(right.sightings), (right.sightings, []))[1].append(plan)
        yield from users.values()

    def behind(self, plan: LeftPlan) -> tuple[frozenset[str], frozenset[HiddenStream]]:
        """Returns the forms and hidden streams that an absence's inputs derive from."""
        self._follow()
        if (found := self._behind.get(plan.part)) is None:
            queries, streams = behind(self._registry, plan.owner)
            found = self._behind[plan.part] = frozenset(query.form_id for query in queries), frozenset(streams)
        return found

    def _follow(self) -> None:
        if self._version == self._registry.version:
            return
        self._version = self._registry.version
        known, self._sightings = self._sightings, {}
        self._groups, self._rights, self._behind = {}, {}, {}
        for row in self._registry.absent:
            for part in self._registry.parts_of_row(row):
                assert isinstance(part, TargetGroup), "absences have no literal tests"
                if part.first.disjunct == 0 and part.first.op in NEGATED:
                    plan = self._left(row, part, known)
                    self._groups.setdefault(plan.group, []).append(plan)

    def _left(self, row: int, part: TargetGroup, known: dict[object, Sightings]) -> LeftPlan:
        first = part.first
        op = first.op
        assert op is not None, "it is an absence"
        owner, targets = first.owner, sorted(first.owner.targets, key=lambda target: target.disjunct)
        absent = owner.normal.absent if isinstance(owner, Subscription) else part.hidden_stream.hidden.absent
        watched = []
        for target, one in zip(targets[1:], absent, strict=True):
            right = self._registry.rows[target.row].group(target, part.forms)
            (side,) = right.sides
            found = AbsenceDisjunct(target.row, right, one, Sightings())
            key = target.row, side, found.right_terms, tuple(found.bound)
            found.sightings = self._sightings.setdefault(key, known.get(key, found.sightings))
            watched.append(found)
            self._rights[right] = found
        group = AbsenceGroup(row, op, first.window, targets[1].streams[0])
        return LeftPlan(group, part, first.streams[0], watched)

"""Absence operator: decides NOT FOLLOWED BY and its kin once the watermark rules out any further partner. It buffers
the matches of both inputs, reloads them from stored documents after a restart or eviction, and charges a left match on
arrival. A decision belongs to the document whose arrival moved the watermark past the deadline, so quotas and pauses do
not depend on batches: a partner counts if it arrived by then, which belated ones (docs/semantics.md, section 16) may
not have. Decisions are stored as marks (document, watermark, query) per stream, not per document.

Right matches ("sightings") are indexed by the values that a partner must share, so a lookup reads the nearest sighting
of those values, not all pairs; with equalities alone, the first one in time decides. near() uses prefix keys in a word
order that is learnt from the first texts and then frozen."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from heapq import merge
from itertools import chain, product
from math import inf
from operator import itemgetter
from typing import NamedTuple, TypeVar

import numpy as np

from common.arrays import Ints
from common.bounds import EARLIEST, INFINITE, LATEST, deadline
from common.tools import JsonRecord, from_json
from join_stage import near_candidates
from join_stage.near_candidates import learnt
from mmqjp.answers import bindings, operators, output
from mmqjp.answers.accounts import Payers, charge
from mmqjp.answers.bindings import JointBlock, Joints, MatchColumns, PartRows, Values
from mmqjp.answers.quota import NEVER, OutOfSteps, Share, Steps
from mmqjp.documents.record import Inputs, Record, StoredRecords
from mmqjp.documents.watermarks import Progress, lateness_of
from mmqjp.queries.forms import TargetGroup
from mmqjp.queries.model import HiddenStream, Owner, Registered, Subscription
from mmqjp.queries.registry import Registry, behind
from pattern_stage.assemble import EVENT_TIME
from xpath_stage.binder import Node, PreparedNode, each_binding
from xscl.algebra.joins import NEGATED, Absent, JoinOp, PatternNode, Term, Test, over_at, variables_of
from xscl.algebra.near import (
    LEVEL,
    as_digits,
    first_keys,
    have_enough_in_common,
    head_length,
    is_weighed,
    level_hundredths,
)
from xscl.algebra.values import many_valued


class AbsenceGroup(NamedTuple):
    """What determines the deadline of absences. Times are in microseconds."""

    row: int  # of the left input
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

    def tells(self, late: int) -> bool:
        """Whether absences for left documents that end this far behind their watermark are reported: only if all their
        partners begin at most a window behind that."""
        return self.partners_from(-late) >= -self.window

    def needed_from(self, left: int, right: int) -> int:
        """Returns the earliest start of right documents to retain at watermarks `left` and `right`, for left documents
        still to come, belated ones too, and those that wait."""
        if min(left, right) <= EARLIEST or self.window == INFINITE:
            return EARLIEST
        waiting = right if self.op == "NOT PRECEDED BY" else right - self.window
        return min(left - self.window, self.partners_from(left - 1), self.partners_from(waiting - 1))


_Match = TypeVar("_Match", "LeftMatch", "RightMatch")


class LeftMatch(NamedTuple):
    """A match of a left input: start time, document, nodes in the template's numbering, and how far behind its
    watermark the document ends, 0 unless it is belated."""

    t0: int
    docid: int
    nodes: tuple[int, ...]
    late: int = 0

    @staticmethod
    def of(matches: MatchColumns, place: int) -> LeftMatch:
        record = matches.records[matches.left[place]]
        late = 0 if record.watermark is None else record.watermark - record.t1
        return LeftMatch(int(matches.t0[place]), *matches.key(place), late)


def _add(found: list[_Match], one: _Match, undo: ExitStack) -> bool:
    """Adds a match to sorted ones, unless it is one of them, and to `undo` its removal. Returns whether it did."""
    place = len(found) if not found or found[-1] < one else bisect_left(found, one)
    if place < len(found) and found[place] == one:
        return False
    found.insert(place, one)
    undo.callback(lambda: found.pop(bisect_left(found, one)))
    return True


class LeftMatches:
    """Left matches of a row of R_T by time, shared by all absences with this left input."""

    def __init__(self, *, is_whole: bool) -> None:
        self._entries: list[LeftMatch] = []
        self.fresh: list[LeftMatch] = []  # added in the running batch
        self.is_whole = is_whole  # whether matches from before the engine was opened are loaded

    def add(self, entry: LeftMatch, undo: ExitStack) -> None:
        if _add(self._entries, entry, undo):
            self.fresh.append(entry)

    def between(self, low: int, high: int) -> list[LeftMatch]:
        return self._entries[bisect_left(self._entries, (low,)) : bisect_left(self._entries, (high,))]

    def drop_before(self, time: int, is_needed: Callable[[LeftMatch], bool]) -> None:
        place = bisect_left(self._entries, (time,))
        self._entries[:place] = filter(is_needed, self._entries[:place])


WORDS = "absence_words"  # setting that holds the numbers of the most frequent words


class WordsInOrder:
    """Derives a text's index keys from a word order: longest words first until enough distinct texts were seen, rarest
    first from then on. The order affects speed only, never results."""

    def __init__(self, setting: str | None) -> None:
        self._places = None if setting is None else _places(setting)
        self._texts: dict[str, str] = {}
        self._next: dict[str, int] | None = None

    def keys_of(self, words: str) -> list[operators.OnceKey]:
        """Returns the keys of a text, given its words as `xscl.algebra.values` returns them."""
        keys = first_keys(words, self._places or {}) if words else []
        level = level_hundredths(words) + 1_000 * is_weighed(words) if words else 0
        return [(level, int(key[LEVEL:], 16)) for key in keys]

    def see(self, words: str) -> None:
        if self._places is None and len(self._texts) < near_candidates.ENOUGH:
            self._texts[words[head_length(words) :]] = words

    def new_setting(self) -> str | None:
        """Learns the order if due; returns the setting to store with the running batch."""
        if self._places is not None or len(self._texts) < near_candidates.ENOUGH:
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
    """A matching right document, with its appearance and arrival (see `mmqjp.documents.record.Record`). `bound` has the
    document and node of each variable that other conditions than equalities need; `words` are its index words if near()
    finds it."""

    t0: int
    t1: int
    docid: int
    appeared: int
    arrival: int
    bound: tuple[tuple[int, Node], ...] = ()
    words: str = ""


class Sightings:
    """Right matches of one input, by time and key."""

    def __init__(self) -> None:
        self._by_key: dict[operators.OnceKey, list[RightMatch]] = {}
        self._latest: dict[operators.OnceKey, int] = {}
        self.cut: int = EARLIEST  # sightings that begin earlier may have been evicted
        self.earlier_from: int = LATEST
        """Documents from before the engine was opened are loaded from this start time on."""

    def add(self, key: operators.OnceKey, one: RightMatch, undo: ExitStack) -> None:
        if _add(self._by_key.setdefault(key, []), one, undo):
            self._latest[key] = max(self._latest.get(key, -1), one.appeared)

    def partners(
        self, key: operators.OnceKey, op: JoinOp, window: int, left: tuple[int, int, int], after: int, until: int
    ) -> Iterator[RightMatch]:
        """Yields the sightings with a key that are partners in time of `left` (t0, t1, docid), appeared after document
        `after`, and arrived `until` an arrival; nearest first where the operator is one-directional."""
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
                if one.t1 < t0 and one.appeared > after and one.arrival <= until:
                    yield one
            return
        begin = bisect_right(found, (t1, LATEST)) if op == "NOT FOLLOWED BY" else bisect_left(found, (t1 - window,))
        for place in range(begin, len(found)):
            one = found[place]
            if one.t0 > t0 + window:
                return
            if op == "NOT JOIN" and (one.docid == docid or max(t1, one.t1) - min(t0, one.t0) > window):
                continue
            if one.t1 <= t0 + window and one.appeared > after and one.arrival <= until:
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

    def rekey(self, keys_of: Callable[[str], Sequence[operators.OnceKey]]) -> None:
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
    """A partner has one of these keys and, for near(), enough of `words` (see `xscl.algebra.values`)."""

    keys: Sequence[operators.OnceKey]
    words: str = ""


def wanted(order: WordsInOrder, binding: bindings.JointBinding, terms: Sequence[Term], steps: Steps) -> PartnerKeys:
    """Returns the keys that a partner shares with the values of terms."""
    texts = [bindings.value_of(binding, term).text() for term in terms]
    steps.take(1 + sum(map(len, texts)) // bindings.CHARACTERS_READ_PER_STEP)
    if many_valued(terms[0].functions) is None:
        return PartnerKeys((operators.once_key(texts),))
    (words,) = texts  # what is found by near() has no equality beside it
    return PartnerKeys(order.keys_of(words), words)


@dataclass(slots=True)
class Partners:
    """Finds partners of one absence, which the arrival `until` decides. `in_vain` counts steps spent on sightings that
    are none."""

    records: StoredRecords
    order: WordsInOrder
    op: JoinOp
    window: int
    watched: Sequence[AbsenceDisjunct]
    until: int
    in_vain: int = 0

    def first(self, record: Record, binding: bindings.JointBinding, after: int, steps: Steps) -> RightMatch | None:
        """Returns a partner of a joint binding that appeared after document `after`, or None."""
        left = record.t0, record.t1, record.docid
        for watched in self.watched:
            for joint in self._with_paths(watched, binding, steps):
                having = wanted(self.order, joint, watched.left_terms, steps)
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
        found = [sightings.partners(key, self.op, self.window, left, after, self.until) for key in having.keys]
        if not having.words:
            yield from chain.from_iterable(found)
            return
        last: RightMatch | None = None
        for sighting in merge(*found, reverse=self.op == "NOT PRECEDED BY"):
            if sighting != last and have_enough_in_common(having.words, sighting.words):
                yield sighting
            last = sighting

    def _with_paths(
        self, watched: AbsenceDisjunct, binding: bindings.JointBinding, steps: Steps
    ) -> Iterator[bindings.JointBinding]:
        if not watched.paths:
            yield binding
            return
        ends: list[list[tuple[str, bindings.BoundValue]]] = []
        for var, path in watched.paths:
            value = binding[var]
            found = each_binding(path, value.record.tree, {(): value.node}, steps.take)
            ends.append([(end, bindings.BoundValue(value.record, node)) for one in found for end, node in one])
        for choice in product(*ends):
            steps.take()
            yield {**binding, **dict(choice)}

    def _holds(
        self, watched: AbsenceDisjunct, joint: bindings.JointBinding, sighting: RightMatch, steps: Steps
    ) -> bool:
        def text_of(term: Term) -> str:
            if term.var in joint:
                return output.read_value(bindings.value_of(joint, term), steps)
            docid, node = sighting.bound[watched.bound[term.var]]
            return output.read_value(bindings.BoundValue(self.records[docid], node, term.functions), steps)

        return all(bindings.residual_holds(expr, text_of) for expr in watched.absent.residual)


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
        self._lefts: dict[TargetGroup, LeftPlan] = {}
        self._rights: dict[TargetGroup, AbsenceDisjunct] = {}
        self._behind: dict[TargetGroup, tuple[frozenset[str], frozenset[HiddenStream]]] = {}

    @property
    def groups(self) -> dict[AbsenceGroup, list[LeftPlan]]:
        self._follow()
        return self._groups

    def left(self, part: TargetGroup) -> LeftPlan:
        self._follow()
        return self._lefts[part]

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
        self._groups, self._lefts, self._rights, self._behind = {}, {}, {}, {}
        for row in self._registry.absent:
            for part in self._registry.parts_of_row(row):
                assert isinstance(part, TargetGroup), "absences have no literal tests"
                if part.first.disjunct == 0 and part.first.op in NEGATED:
                    plan = self._lefts[part] = self._left(row, part, known)
                    self._groups.setdefault(plan.group, []).append(plan)

    def _left(self, row: int, part: TargetGroup, known: dict[object, Sightings]) -> LeftPlan:
        first = part.first
        op = first.op
        assert op is not None, "it is an absence"
        owner, targets = first.owner, sorted(first.owner.targets, key=lambda target: target.disjunct)
        absent = owner.normal.absent if isinstance(owner, Registered) else part.hidden_stream.hidden.absent
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


class SeenBy(NamedTuple):
    """Documents after which recipients see everything: the `least`, the `latest`, and `every` one, sorted."""

    least: int
    latest: int
    every: Callable[[], list[int]]

    def partner_seen(
        self, partners: Partners, record: Record, binding: bindings.JointBinding, steps: Steps
    ) -> int | None:
        """Returns the greatest document after which a recipient sees a partner: less than NOBODY if no recipient does,
        None if all do."""
        if partners.first(record, binding, self.latest, steps) is not None:
            return None
        if self.least == self.latest or partners.first(record, binding, self.least, steps) is None:
            return operators.NOBODY - 1
        earlier = (after for after in reversed(self.every()) if after < self.latest)
        seen = (after for after in earlier if partners.first(record, binding, after, steps) is not None)
        return next(seen, operators.NOBODY - 1)


@dataclass(frozen=True, slots=True)
class PendingAbsence(JsonRecord):
    """The left `documents` of a query's absences that wait, and the time `until` which its `stream` must come before
    the first of them is decided (None: never). It is the one that is furthest behind of the external streams that the
    query waits for, None if that is what event statements publish; and `feed` the one whose visits hold it, if any."""

    query: str
    documents: int
    until: int | None
    stream: str | None
    feed: str | None


ABSENCES = "absences"  # setting that holds the decision marks


class DecisionMark(NamedTuple):
    """Every absence due at `watermark` is decided, for documents before `docid` and queries before `qid`."""

    docid: int
    watermark: int
    qid: int


Marks = tuple[DecisionMark, ...]
"""Later marks come last and have earlier watermarks; each replaces those that it covers. Watermarks fall if a stream
changes its publisher or a store is reopened with more lateness, so usually there is one mark."""


@dataclass(slots=True)
class Decided:
    by_stream: dict[str, Marks] = field(default_factory=dict)

    def note(self, stream: str, mark: DecisionMark) -> None:
        """Appends the latest mark and drops those that it covers. A mark that decides nothing is added only after
        others: it records how far the watermark has fallen."""
        if mark.watermark > EARLIEST or self.least(stream) > EARLIEST:
            known = self.by_stream.get(stream, ())
            self.by_stream[stream] = (*(old for old in known if old.watermark > mark.watermark), mark)

    def told_before(self, group: AbsenceGroup, entry: LeftMatch) -> int:
        """Returns the qid before which the absence is decided for all queries; 0 if undecided."""
        for mark in reversed(self.by_stream.get(group.right_stream, ())):
            if entry.t0 < group.decided_before(mark.watermark):
                return mark.qid if entry.docid < mark.docid else 0
        return 0

    def is_undecided(self, groups: Iterable[AbsenceGroup], entry: LeftMatch) -> bool:
        return not all(self.told_before(group, entry) for group in groups)

    def least(self, stream: str) -> int:
        """Returns the watermark up to which all absences are decided for all queries; EARLIEST if none is."""
        marks = self.by_stream.get(stream, ())
        return marks[-1].watermark if marks else EARLIEST

    @staticmethod
    def from_setting(text: str | None) -> Decided:
        return Decided(from_json(dict[str, Marks], json.loads(text or "{}")))


WORTH_DROPPING = 64  # sightings are evicted once this fraction of the window (one part in 64) has expired


class KeptMatches:
    """Buffered matches of both inputs of all absences. `order` is the word order by which near() finds texts."""

    def __init__(self, shared: operators.Components) -> None:
        self._store, self._ledger, self._registry, self._records, self._watermarks, _ = shared
        self._opened_at = self._ledger.next_docid
        """The number of the first document since the engine was opened."""
        self.order = WordsInOrder(self._ledger.setting(WORDS))
        self.plans = Plans(self._registry)
        self._waiting: dict[int, LeftMatches] = {}
        # What the running batch has changed.
        self._undo = ExitStack()
        self._seen: dict[tuple[Sightings, int, tuple[int, ...]], int] = {}

    def queries_of(self, plan: LeftPlan) -> Iterable[Subscription]:
        form = plan.part.form
        return self._registry.readers_of(plan.owner) if form is None else form

    def wait(self, row: int, entry: LeftMatch) -> None:
        self.waiting(row).add(entry, self._undo)

    def see(self, right: AbsenceDisjunct, matches: MatchColumns, places: Ints, allowed: int) -> list[int]:
        """Adds right matches, each once for absences that share sightings, and returns their costs in steps."""
        keys = [(right.sightings, *matches.key(place)) for place in places.tolist()]
        fresh = [row for row, key in enumerate(keys) if key not in self._seen]
        if fresh:
            rows = PartRows([right.part], np.zeros(len(fresh), np.int64), places[fresh])
            joints = Joints(right.part.plan[0], rows, matches, Values(matches, self._records), allowed)
            for block in joints.blocks():
                for row, binding in zip(block.of.tolist(), block.bindings(), strict=True):
                    steps = Steps(left := allowed - int(joints.steps[row]))
                    with suppress(OutOfSteps):
                        self._see(right, matches.records[matches.left[rows.place[row]]], binding, steps)
                    joints.steps[row] += left - steps.left
            for row, taken in zip(fresh, joints.steps.tolist(), strict=True):
                self._seen[keys[row]] = taken
        return [self._seen[key] for key in keys]

    def _see(self, right: AbsenceDisjunct, record: Record, binding: bindings.JointBinding, steps: Steps) -> None:
        bound = tuple((binding[var].record.docid, binding[var].node) for var in right.bound)
        found = wanted(self.order, binding, right.right_terms, steps)
        if found.words:
            self.order.see(found.words)
        appeared, arrival = min(record.appeared), record.arrival
        one = RightMatch(record.t0, record.t1, record.docid, appeared, arrival, bound, found.words)
        for key in found.keys:
            right.sightings.add(key, one, self._undo)

    def waiting(self, row: int) -> LeftMatches:
        if row not in self._waiting:
            self._waiting[row] = LeftMatches(is_whole=self._opened_at == 0)
        return self._waiting[row]

    def due(
        self, group: AbsenceGroup, watermark: int, decided: Decided, *, again: bool = False
    ) -> dict[LeftMatch, int]:
        """Returns the entries of a group that a watermark decides, by time, each with the qid before which it is
        decided for all queries. Leaves out those decided for all queries, unless `again`."""
        before = group.decided_before(watermark)
        if before <= EARLIEST:
            return {}
        self.load(group.row, decided)
        waiting = self.waiting(group.row)
        low = EARLIEST if again else group.decided_before(decided.least(group.right_stream))
        entries = [entry for entry in sorted(waiting.fresh) if entry.t0 < min(low, before)]
        entries += waiting.between(low, before)
        return {entry: decided.told_before(group, entry) for entry in entries if group.tells(entry.late)}

    def load(self, row: int, decided: Decided) -> None:
        if self.waiting(row).is_whole:
            return
        groups = [group for group in self.plans.groups if not self.waiting(group.row).is_whole]
        low = min((group.decided_before(decided.least(group.right_stream)) for group in groups), default=LATEST)
        for group in groups:
            self.waiting(group.row).is_whole = True
            self._undo.callback(setattr, self.waiting(group.row), "is_whole", False)
        for matches in self._replayed({group.row for group in groups}, low):
            for place, row in enumerate(matches.rows.tolist()):
                self.wait(row, LeftMatch.of(matches, place))

    def _replayed(self, rows: Collection[int], low: int) -> Iterator[MatchColumns]:
        for _, matches in operators.stored_matches(self._store, self._registry, self._records, rows, low):
            for chunk in matches.to_batches(max_chunksize=operators.MATCH_CHUNK):
                if chunk.num_rows:
                    yield MatchColumns(chunk, self._records)

    def recall(self, plan: LeftPlan, entries: Iterable[LeftMatch]) -> None:
        """Loads evicted sightings that the entries need."""
        need = min(plan.group.partners_from(self._records[entry.docid].t1) for entry in entries)
        sees_after = min((query.sees_after for query in self.queries_of(plan) if query.active), default=INFINITE)
        for right in plan.watched:
            sightings = right.sightings
            is_earlier = sees_after < self._opened_at - 1 and need < sightings.earlier_from
            if is_earlier or need < sightings.cut:
                self._reload(right, min(need, sightings.earlier_from))

    def _reload(self, right: AbsenceDisjunct, low: int) -> None:
        sightings = right.sightings
        for name in ("cut", "earlier_from"):
            self._undo.callback(setattr, sightings, name, getattr(sightings, name))
        for matches in self._replayed({right.row}, low):
            self.see(right, matches, np.arange(len(matches)), NEVER)
        sightings.cut, sightings.earlier_from = min(sightings.cut, low), min(sightings.earlier_from, low)

    def save(self) -> None:
        if (setting := self.order.new_setting()) is not None:
            self._ledger.save_settings({WORDS: setting})

    def committed(self, decided: Decided, now: Mapping[str, int]) -> None:
        """Evicts after commit what no absence needs any more. `now` has the watermarks of right streams."""
        if self.order.finish_batch(committed=True):
            for sightings, _ in self.plans.sightings():
                sightings.rekey(self.order.keys_of)
        by_row: dict[int, list[AbsenceGroup]] = {}
        for group in self.plans.groups:
            by_row.setdefault(group.row, []).append(group)
        for row, waiting in list(self._waiting.items()):
            if (groups := by_row.get(row)) is None:
                del self._waiting[row]
            else:
                low = min(group.decided_before(decided.least(group.right_stream)) for group in groups)
                waiting.drop_before(low, partial(decided.is_undecided, groups))
        for sightings, plans in self.plans.sightings():
            cut = min((self._cut(plan, now) for plan in plans), default=EARLIEST)
            widest = max(plan.group.window for plan in plans)
            if cut > EARLIEST and widest < INFINITE and cut > sightings.cut + widest // WORTH_DROPPING:
                sightings.drop_before(cut)
        self._forget_batch()

    def rolled_back(self) -> None:
        self.order.finish_batch(committed=False)
        self._undo.close()
        self._forget_batch()

    def _forget_batch(self) -> None:
        for waiting in self._waiting.values():
            waiting.fresh.clear()
        self._undo.pop_all()
        self._seen.clear()

    def _cut(self, plan: LeftPlan, now: Mapping[str, int]) -> int:
        right = now.get(plan.group.right_stream, EARLIEST)
        left = self._watermarks.of(self._registry.sources(plan.left_stream))
        return EARLIEST if right >= LATEST else plan.group.needed_from(left, right)


Due = list[tuple[LeftPlan, dict[LeftMatch, int]]]
"""Entries that are due, by absence, each with the qid before which it is decided for all queries."""


class AbsenceOperator:
    """Its state is read at creation and written in `save`. A rollback restores the previous state."""

    def __init__(
        self, shared: operators.Components, queries: operators.QueryOperator, inner: operators.InnerJoinOperator
    ) -> None:
        self._store, self._ledger, self._registry, self._records, self._watermarks, self._quota = shared
        self._queries, self._inner, self._kept = queries, inner, KeptMatches(shared)
        self._plans = self._kept.plans
        self._decided = Decided.from_setting(self._ledger.setting(ABSENCES))
        # What the running batch has changed.
        self._now: dict[str, int] = {}
        self._done: dict[TargetGroup, set[LeftMatch]] = {}
        self._noted = self._decided

    def on_matches(self, parts: Sequence[operators.OfRow], of: operators.Expansion) -> None:
        context, matches = of.context, of.matches
        for part, places in parts:
            assert isinstance(part, TargetGroup), "absences have no literal tests"
            given = [(place, self._payers(part, matches, place, context)) for place in places.tolist()]
            all_payers = [payers for _, payers in given if payers]
            places = np.array([place for place, payers in given if payers], np.int64)
            if not len(places):
                continue
            if part.first.disjunct:
                sizes, right = [0] * len(places), self._plans.right(part)
                steps = self._kept.see(right, matches, places, self._quota.work)
            else:
                sizes, steps = self._sizes(part, of, places)
                for place in places.tolist():
                    self._kept.wait(int(matches.rows[place]), LeftMatch.of(matches, place))
            arrivals = matches.arrival[places].tolist()
            for payers, charges in zip(all_payers, zip(arrivals, sizes, steps, strict=True), strict=True):
                charge(payers, *charges)

    def _payers(self, part: TargetGroup, matches: MatchColumns, place: int, context: operators.StepContext) -> Payers:
        """Returns who gets a match, and counts it if it is too late. Nobody gets a left one that is not reported."""
        inputs = matches.inputs(place)
        payers = context.payers(part, inputs)
        if inputs[0].watermark is None or not payers:
            return payers
        is_right = bool(part.first.disjunct)
        is_reported = is_right or self._plans.left(part).group.tells(inputs[0].watermark - inputs[0].t1)
        if not is_reported or (is_right and context.progress is not None):
            context.accounts.note_belated(part, payers, inputs)
        return payers if is_reported else ()

    def is_due(self, greatest: Mapping[str, int]) -> bool:
        """Whether `on_watermark` would yield anything at these greatest times, by stream."""
        return bool(self._due(greatest))

    def on_watermark(
        self, context: operators.StepContext, greatest: Mapping[str, int] | None
    ) -> list[operators.Expansion]:
        """Returns decisions due at these greatest times, by stream, whose inputs are complete. None stands for the end
        of all streams. Called again once its results are answered, until it returns nothing."""
        found: list[operators.Expansion] = []
        self._now |= {group.right_stream: self._watermark(group, greatest) for group in self._plans.groups}
        while not found and (ready := self._ready(self._due(greatest, context.backfilled), context)):
            for plan, entries in ready:
                self._kept.recall(plan, entries)
                self._done.setdefault(plan.part, set()).update(entries)
                by_number: dict[int, list[LeftMatch]] = {}
                for entry, told_before in entries.items():
                    by_number.setdefault(told_before, []).append(entry)
                for told_before, some in by_number.items():
                    found += self._decide(plan, some, context, told_before, greatest)
        return found

    def _due(self, greatest: Mapping[str, int] | None, backfilled: Collection[Owner] = ()) -> Due:
        due: Due = []
        for group, plans in self._plans.groups.items():
            watermark = self._watermark(group, greatest)
            entries = self._kept.due(group, watermark, self._decided)
            for plan in plans:
                wanted = entries
                if backfilled and any(one in backfilled for one in plan.part.form or (plan.owner,)):
                    # For the others it has been reported.
                    wanted = self._kept.due(group, watermark, self._decided, again=True)
                if wanted := self._wanted(plan, wanted):
                    due.append((plan, wanted))
        return due

    def _wanted(self, plan: LeftPlan, due: Mapping[LeftMatch, int]) -> dict[LeftMatch, int]:
        done = self._done.get(plan.part, ())
        found = {entry: told_before for entry, told_before in due.items() if entry not in done}
        if any(found.values()):
            qids = (query.qid for query in self._kept.queries_of(plan) if query.active)
            last = max(qids, default=-1) if plan.part.form is not None else min(qids, default=-1)
            found = {entry: before for entry, before in found.items() if not before or last >= before}
        return found

    def undecided(self, greatest: Mapping[str, int] | None) -> operators.Undecided:
        """Returns the forms and hidden streams whose decisions at these greatest times wait for deferred answers."""
        return _undecided(self._due(greatest))

    def waiting(self, name: str | None = None) -> dict[str, PendingAbsence]:
        """Returns what is undecided, by query name, of all queries or of those of a name."""
        found: dict[str, tuple[set[int], dict[AbsenceGroup, int]]] = {}
        for group, plans in self._plans.groups.items():
            self._kept.load(group.row, self._decided)
            entries = self._kept.waiting(group.row).between(EARLIEST, LATEST)
            first_qids = {one: self._decided.told_before(group, one) for one in entries if group.tells(one.late)}
            queries = (query for plan in plans for query in self._kept.queries_of(plan) if query.active)
            for query in queries if name is None else (query for query in queries if query.name == name):
                after, qid = query.sees_after, query.qid
                if some := [entry for entry, before in first_qids.items() if entry.docid > after and qid >= before]:
                    docids, first = found.setdefault(query.name, (set(), {}))
                    docids |= {entry.docid for entry in some}
                    first[group] = min(first.get(group, LATEST), some[0].t0)
        slowest = {group.right_stream: self._slowest(group.right_stream) for group in self._plans.groups}
        pending = {}
        for of_query, (docids, first) in sorted(found.items()):
            waits = ((group.decided_at(t0) + slowest[group.right_stream][1], group) for group, t0 in first.items())
            until, group = min(waits, key=itemgetter(0))
            stream, _, feed = slowest[group.right_stream]
            last = None if until == inf else int(until)
            pending[of_query] = PendingAbsence(of_query, len(docids), last, stream, feed)
        return pending

    def _slowest(self, right_stream: str) -> tuple[str | None, float, str | None]:
        """Returns the stream behind another one that is furthest behind, its lateness, and the feed that holds it."""
        known, streams = self._watermarks, sorted(self._registry.sources(right_stream))
        stream, watermark = min(((one, known.of([one])) for one in streams), key=itemgetter(1))
        if stream == EVENT_TIME:
            return None, 0, None
        if stream in known.greatest and watermark > EARLIEST:  # also if only an earlier session had a lateness
            return stream, known.greatest[stream] - watermark, known.slowest_feed(stream)
        lateness = lateness_of(known.timing.lateness, stream)
        return stream, inf if lateness is None else lateness, known.slowest_feed(stream)

    def never_decided(self) -> dict[str, str]:
        """Returns the queries that decide nothing before the end, each with the stream whose lateness is unlimited."""
        lateness, found = self._watermarks.timing.lateness, dict[str, str]()
        for group, plans in self._plans.groups.items():
            sources = sorted(self._registry.sources(group.right_stream) - {EVENT_TIME})
            endless = [one for one in sources if lateness_of(lateness, one) is None]
            for plan in plans if endless else ():
                found |= {query.name: endless[0] for query in self._kept.queries_of(plan)}
        return found

    def save(self) -> None:
        known = self._decided.by_stream.items()
        noted = Decided({stream: marks for stream, marks in known if stream in self._now})
        latest = next(reversed(self._registry.subscriptions), -1)
        for stream, watermark in self._now.items():
            noted.note(stream, DecisionMark(self._ledger.next_docid, watermark, latest + 1))
        if noted.by_stream != self._decided.by_stream:
            self._ledger.save_settings({ABSENCES: json.dumps(noted.by_stream, ensure_ascii=False)})
        self._kept.save()
        self._noted = noted

    def finish_batch(self, *, committed: bool) -> None:
        if committed:
            self._decided = self._noted
            self._kept.committed(self._decided, self._now)
        else:
            self._kept.rolled_back()
            self._noted = self._decided
        self._done.clear()
        self._now.clear()

    def _sizes(self, part: TargetGroup, of: operators.Expansion, places: Ints) -> tuple[list[int], list[int]]:
        """Returns the number of outputs of each match, if there is no partner, and the steps to find that."""
        choices: list[set[object]] = [set() for _ in places]
        if part.form is not None:
            names = [term.var for term in part.form.selection.terms]
        else:
            names = list(part.hidden_stream.hidden.variables)
        rows = PartRows([part], np.zeros(len(places), np.int64), places)
        joints = of.joints(part.plan[0], rows, self._quota.work)
        for block in joints.blocks():
            columns = [block.codes(var).tolist() for var in names]
            for row, choice in zip(
                block.of.tolist(), zip(*columns, strict=True) if columns else [()] * len(block.of), strict=True
            ):
                choices[row].add(choice)
            joints.stop(np.array([len(some) > self._quota.matches for some in choices]))
        return list(map(len, choices)), joints.steps.tolist()

    def _watermark(self, group: AbsenceGroup, greatest: Mapping[str, int] | None) -> int:
        sources = self._registry.sources(group.right_stream)
        return self._watermarks.at_end(sources) if greatest is None else self._watermarks.of(sources, greatest)

    def _ready(self, due: Due, context: operators.StepContext) -> Due:
        forms, streams = _undecided(due)
        forms = {*forms, *(form.id for form in context.put_off)}
        ready = []
        for plan, entries in due:
            behind_forms, behind_streams = self._plans.behind(plan)
            if behind_forms.isdisjoint(forms) and streams.isdisjoint(behind_streams):
                ready.append((plan, entries))
        return ready

    def _decided_by(
        self, group: AbsenceGroup, record: Record, progress: Progress | None, greatest: Mapping[str, int] | None
    ) -> int:
        """Returns the arrival that decides a document's absence: in a backfill, its own."""
        if progress is None:
            return record.arrival
        if greatest is None:
            return progress.last
        sources = self._registry.sources(group.right_stream)
        return max(record.arrival, progress.came_to(group.decided_at(record.t0), sources))

    def _decide(
        self,
        plan: LeftPlan,
        entries: Sequence[LeftMatch],
        context: operators.StepContext,
        told_before: int,
        greatest: Mapping[str, int] | None,
    ) -> Iterator[operators.Expansion]:
        """Yields the outputs of entries for queries from number `told_before` on."""
        part, group = plan.part, plan.group
        chunk = output.as_batch([bindings.Match(group.row, one.docid, None, one.nodes) for one in entries])
        of = operators.Expansion.of(context, chunk, self._records)
        matches = of.matches
        for place, one in enumerate(entries):
            record = self._records[one.docid]
            matches.t1[place] = over_at(group.op, group.window, record.t0, record.t1)
            matches.arrival[place] = self._decided_by(group, record, context.progress, greatest)
        if part.form is None and told_before:
            # There may be tuples from when other queries read the stream.
            known = frozenset(operators.known_tuples(self._store, [part.hidden_stream.stream]))
            of.context = context = replace(context, known_tuples=known)
        inputs = list(map(matches.inputs, range(len(entries))))
        payers = [context.payers(part, one, first_qid=told_before) for one in inputs]
        those = np.flatnonzero([bool(some) for some in payers])
        rows = PartRows([part], np.zeros(len(those), np.int64), those)
        joints = of.joints(part.plan[0], rows, self._quota.work)
        untils = np.full(len(entries), NEVER) if context.progress is None else matches.arrival
        given = self._records, self._kept.order, group.op, group.window, plan.watched
        partners = [Partners(*given, until) for until in untils[those].tolist()]
        steps: dict[int, Steps] = {}
        seen_by: dict[int, SeenBy] = {}
        alone: list[tuple[JointBlock, list[tuple[int, int]]]] = []
        out: set[int] = set()
        for block in joints.blocks():
            found: list[tuple[int, int]] = []
            for joint, (row, binding) in enumerate(zip(block.of.tolist(), block.bindings(), strict=True)):
                place = int(those[row])
                if row not in steps:
                    steps[row] = Steps(self._quota.work - int(joints.steps[row]))
                    seen_by[row] = self._seen_by(part, payers[place][0][1], inputs[place], context)
                if row in out:
                    continue
                try:
                    until = seen_by[row].partner_seen(partners[row], inputs[place][0], binding, steps[row])
                except OutOfSteps:
                    out.add(row)
                    continue
                if until is not None:
                    found.append((joint, until))
            if found:
                alone.append((block, found))
        out.update(np.flatnonzero(joints.steps > self._quota.work).tolist())
        for row, place in enumerate(those.tolist()):
            if row in out:
                charge(payers[place], inputs[place].arrival, 0, self._quota.work + 1)
            elif partners[row].in_vain:
                charge(payers[place], inputs[place].arrival, 0, partners[row].in_vain)
        for block, found in alone:
            kept = [(joint, until) for joint, until in found if int(block.of[joint]) not in out]
            if not kept:
                continue
            some = block.take(np.array([joint for joint, _ in kept]))
            if part.form is None:
                for row, binding in zip(some.of.tolist(), some.bindings(), strict=True):
                    _, document = self._inner.tuple_of(part.hidden_stream, context, inputs[those[row]], binding)
                    of.documents += [] if document is None else [document]
            else:
                shares = [payers[place][0][1] for place in those.tolist()]
                alone_after = [until for _, until in kept]
                self._queries.answer_alone(part, rows, shares, some, alone_after, of)
        if of.documents or of.ids:
            yield of

    def _seen_by(self, part: TargetGroup, share: Share, inputs: Inputs, context: operators.StepContext) -> SeenBy:
        if part.form is None:
            readers = self._registry.readers(part.hidden_stream.stream)
            least = min(query.sees_after for query in readers if query.active)
            return SeenBy(least, least, list)
        account, audience = context.accounts.of(part.form), part.form.audience

        def every() -> list[int]:
            return sorted({q.sees_after for q in audience.queries if account.gets(share, q, inputs.arrival)}) or [-1]

        latest = max(audience.members.latest_since, audience.latest_gap)
        if latest < inputs.appeared and not share.first_qid:
            return SeenBy(int(audience.members.sorted_sinces[0]), latest, every)
        known = every()
        return SeenBy(known[0], known[-1], lambda: known)


def _undecided(due: Due) -> operators.Undecided:
    forms = {plan.part.form.id for plan, _ in due if plan.part.form is not None}
    return forms, {plan.part.hidden_stream for plan, _ in due if plan.part.form is None}

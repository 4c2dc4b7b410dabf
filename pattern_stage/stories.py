"""STORIES: folds pairs of documents into stories, in the order of the later documents (time, stream, id). A document
joins the open stories that have one of its partners; several become one, which keeps the identity of the oldest; if
there is none, a story begins with its partners and it. Partners without an open story join with it. A second pass
decides which changes are reported, and which documents each lists, since HAVING is tested by columns."""

from __future__ import annotations

import json
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa

from common.arrays import Ints, Mask
from pattern_stage.aggregate import began_of
from pattern_stage.columns import NO_INTS, NULL_TEXT, Column, Columns, Flow, each_once, no_events, sorted_flow
from pattern_stage.fan_out import RowReaders
from pattern_stage.operators import Bounded, Crowded, MOpContext, Renumber, Room
from pattern_stage.values import Pairs, compile_condition, flatten_lists, ints, lists
from xscl.algebra.events import ALWAYS, OWN, SIDES, STORY_TEXTS, Stories, StoryChange


class StoryDocument(NamedTuple):
    """A document of a pair, ordered as documents are taken. `time` is that of its end, in microseconds."""

    time: int
    stream: str
    id: str


class _Member(NamedTuple):
    """A member's feed, or the stream if it has none; the values that are counted; and the number of its pair."""

    feed: str
    values: tuple[str | float | None, ...]
    part: int


@dataclass(eq=False, slots=True)
class _Story:
    """An open story. `first` is its earliest document. `unlisted` and `merged` have not been reported: documents,
    and the ids of stories that it took up."""

    id: str
    first: StoryDocument
    members: dict[StoryDocument, _Member] = field(default_factory=dict)
    feeds: set[str] = field(default_factory=set)
    values: list[set[str | float]] = field(default_factory=list)
    unlisted: list[StoryDocument] = field(default_factory=list)
    merged: list[str] = field(default_factory=list)
    reported: bool = False
    open: bool = True

    def add(self, document: StoryDocument, member: _Member) -> None:
        self.members[document] = member
        self.first = min(self.first, document)
        self.feeds.add(member.feed)
        for known, value in zip(self.values, member.values, strict=True):
            if value is not None:
                known.add(value)

    def counts(self) -> tuple[int, ...]:
        return len(self.members), len(self.feeds), *map(len, self.values)


@dataclass(frozen=True, slots=True)
class _Changed:
    """A change of a story at a time, with its counts and its first document then, new documents, the last one, and
    stories that it took up."""

    story: _Story
    change: StoryChange
    at: int
    counts: tuple[int, ...]
    first: StoryDocument
    new: Sequence[StoryDocument]
    latest: StoryDocument
    others: Sequence[_Story] = ()


@dataclass(eq=False, slots=True)
class _Row:
    """The stories of a row: those of each document, and when each is over, also as was known before."""

    of: dict[StoryDocument, list[_Story]] = field(default_factory=dict)
    ends: list[tuple[int, int, _Story]] = field(default_factory=list)
    waiting: int = 0

    def note_end(self, story: _Story, lasting: int) -> None:
        heappush(self.ends, (story.first.time + lasting + 1, next(_numbers), story))


_numbers = count()  # so that entries of a heap differ


Pair = tuple[StoryDocument, _Member, StoryDocument, _Member]


class StoryTelling(Bounded):
    """The STORIES operator. Rows differ in input, LASTING, constants of HAVING, and since."""

    def __init__(self, context: MOpContext) -> None:
        super().__init__(context)
        self._definition = definition = cast(Stories, context.definitions[0])
        self._readers = RowReaders()
        self._stories: dict[int, _Row] = {}
        names = [name for name, _ in definition.source.schema]
        counted = [value for _, value in definition.counts]
        self._columns = [[names.index(f"{side}_{name}") for name in (*OWN, *counted)] for side in SIDES]
        self._kinds = [kind for _, kind in definition.source.schema]
        self._conditions: dict[int, Callable[[Pairs], Mask]] = {}

    def add_rows(self, new: Ints) -> None:
        self._readers.add(new, self._rows.left[new])

    def remove_rows(self, gone: Ints) -> None:
        self._readers.remove(gone)
        for row in gone.tolist():
            self._stories.pop(row, None)

    def leave(self, rows: Ints) -> None:
        for row in rows.tolist():
            self._stories.pop(row, None)
        self._readers.remove(rows)

    # ------------------------------------------------------------ running

    def attempt(self, inputs: Sequence[Flow], until: int, room: Room) -> Flow:
        (flow,) = inputs
        places, rows = self._readers.of(flow.rows)
        at = flow.at[places]
        if len(at):
            seen = began_of(flow.events, self._lineage)[at] > self._rows.apart[rows]
            at, rows = at[seen], rows[seen]
        room.waiting -= 2 * len(at)
        if room.waiting < 0:
            raise Crowded("partial")
        pairs = self._pairs(flow.events, at)
        found: list[tuple[int, _Changed]] = []
        order = np.lexsort((at, rows))
        starts = np.flatnonzero(np.diff(rows[order], prepend=-1))
        for start, end in zip(starts.tolist(), np.append(starts, len(order))[1:].tolist(), strict=True):
            row, mine = int(rows[order[start]]), at[order[start:end]].tolist()
            lasting = int(self._rows.within[row])
            own = self._stories.setdefault(row, _Row())
            found += [(row, one) for one in self._fold(own, lasting, [pairs[one] for one in mine if one in pairs])]
        for row, own in self._stories.items():
            found += [(row, one) for one in _closed(own, int(self._rows.within[row]), until)]
        for row in [row for row, own in self._stories.items() if not own.waiting]:
            del self._stories[row]
        return self._events(found)

    def _pairs(self, events: Columns, at: Ints) -> dict[int, Pair]:
        """Returns the pairs at these places, the later document first. An event is a pair if it has the ids, streams
        and times of two documents and ends when the later one does, so that pairs come in the order of the fold."""
        places = np.unique(at)
        ends = np.array([events.values[columns[2]][places] for columns in self._columns])
        is_pair = np.isfinite(ends).all(0) & (ends.max(0) == events.t1[places])
        for column in (events.values[one] for columns in self._columns for one in columns[:2]):
            is_pair &= column[places] != NULL_TEXT
        places = places[is_pair]
        sides = []
        for columns in self._columns:
            values = [self._values(events.values[one][places], self._kinds[one]) for one in columns]
            ids, streams, times, feeds, *counted = values
            documents = map(StoryDocument, map(int, times), streams, ids)
            others = zip(*counted, strict=True) if counted else ((),) * len(places)
            parts = events.parts[places, 0].tolist()
            known = zip(feeds, streams, others, parts, strict=True)
            members = [
                _Member(stream if feed is None else feed, tuple(some), part) for feed, stream, some, part in known
            ]
            sides.append(zip(documents, members, strict=True))
        found: dict[int, Pair] = {}
        for place, (one, member), (other, theirs) in zip(places.tolist(), *sides, strict=True):
            found[place] = (one, member, other, theirs) if one > other else (other, theirs, one, member)
        return found

    def _values(self, column: Column, kind: str) -> list[Any]:
        if kind == "string":
            return self._texts.texts(column.astype(np.int64))
        return [None if value != value else value for value in column.tolist()]

    def _fold(self, own: _Row, lasting: int, pairs: Iterable[Pair]) -> Iterator[_Changed]:
        partners: dict[StoryDocument, dict[StoryDocument, tuple[_Member, _Member]]] = {}
        for later, member, earlier, other in pairs:
            if later != earlier:
                partners.setdefault(later, {}).setdefault(earlier, (member, other))
        for document in sorted(partners):
            of = dict(sorted(partners[document].items()))
            stories: dict[str, _Story] = {}
            outside = []
            for partner in of:
                open_ = [one for one in own.of.get(partner, ()) if document.time <= one.first.time + lasting]
                stories.update((one.id, one) for one in open_)
                if not open_ and document.time - partner.time <= lasting:
                    outside.append(partner)
            if not (stories or outside):
                continue
            before = None
            if stories:
                story, *others = sorted(stories.values(), key=lambda one: (one.first, one.id))
                before = story.first
            else:
                values = [set[str | float]() for _ in self._definition.counts]
                id = story_id(self._definition.name, outside[0], document)
                story, others = _Story(id, outside[0], values=values), []
            for taken_up in others:
                _take_up(own, story, taken_up)
            for partner in outside:
                _join(own, story, partner, of[partner][1])
            _join(own, story, document, next(pair[0] for partner, pair in of.items() if partner in story.members))
            if story.first != before:
                own.note_end(story, lasting)
            change: StoryChange = "merged" if others else "grew" if stories else "opened"
            details = change, document.time, story.counts(), story.first, [*outside, document], document, others
            yield _Changed(story, *details)

    # ------------------------------------------------------------ reporting

    def _events(self, found: Sequence[tuple[int, _Changed]]) -> Flow:
        schema = self._definition.schema
        if not found:
            return Flow(no_events(schema, 3), NO_INTS, NO_INTS)
        holds = self._holds(found)
        kept, columns, groups = list[int](), list[tuple[Any, ...]](), list[list[int]]()
        for place, (_, one) in enumerate(found):
            story = one.story
            for other in one.others:
                story.unlisted = sorted({*story.unlisted, *other.unlisted})
                story.merged += [other.id, *other.merged]
            for document in one.new:
                insort(story.unlisted, document)
            if not holds[place] or not self._tells(one):
                continue
            listed = story.unlisted or [one.first]
            texts = [_json(story, [document]) for document in (one.first, one.latest)]
            texts += [_json(story, story.unlisted), json.dumps(story.merged)]
            parts = [story.members[document].part for document in listed]
            groups.append([story.members[one.first].part, story.members[one.latest].part, *parts])
            columns.append((one.at, one.first.time, story.id, one.change, one.counts, texts))
            kept.append(place)
            story.unlisted, story.merged, story.reported = [], [], True
        if not kept:
            return Flow(no_events(schema, 3), NO_INTS, NO_INTS)
        t1, t0, ids, changes, counts, texts_of = zip(*columns, strict=True)
        numbers = np.array(counts, np.float64).T
        values: list[Column] = [self._texts.codes(ids), self._texts.codes(changes), *numbers]
        values += [self._texts.codes(column) for column in zip(*texts_of, strict=True)]
        sizes = [len(group) - 2 for group in groups]
        joined = np.array([part for group in groups for part in group[2:]], np.int64).reshape(-1, 1)
        sets = self._lineage.together(joined, np.repeat(np.arange(len(groups)), sizes))
        parts_of = np.column_stack([sets, np.array([group[:2] for group in groups], np.int64)])
        events = Columns(np.array(t0, np.int64), np.array(t1, np.int64), tuple(values), parts_of)
        rows = np.array([found[place][0] for place in kept], np.int64)
        return each_once(sorted_flow(events, np.arange(len(kept)), rows))

    def _tells(self, one: _Changed) -> bool:
        return one.change in self._definition.tell if self._definition.tell else not one.story.reported

    def _holds(self, found: Sequence[tuple[int, _Changed]]) -> Mask:
        held = np.ones(len(found), np.bool_)
        if all(one.having == ALWAYS for one in self._definitions):
            return held
        rows = np.array([row for row, _ in found], np.int64)
        numbers = np.array([one.counts for _, one in found], np.float64).T
        ids = self._texts.codes(one.story.id for _, one in found)
        none = self._texts.codes([None] * len(found))
        values = (ids, self._texts.codes(one.change for _, one in found), *numbers, *(none for _ in STORY_TEXTS))
        times = np.array([one.at for _, one in found], np.int64)
        events = Columns(times, times, values, np.full((len(found), 1), -1))
        shapes = self._rows.shape[rows]
        for shape in np.unique(shapes).tolist():
            of = np.flatnonzero(shapes == shape)
            if (condition := self._conditions.get(shape)) is None:
                one = self._definitions[shape]
                condition = compile_condition(one.having, one.schema, None, self._texts)
                self._conditions[shape] = condition
            held[of] = condition(Pairs(events, of, rows[of], self._rows.parameters))
        return held

    # ------------------------------------------------------------ waiting state

    def due(self) -> int | None:
        return min((own.ends[0][0] for own in self._stories.values() if own.ends), default=None)

    def waiting(self) -> Ints:
        found = np.zeros(max(self._stories, default=-1) + 1, np.int64)
        for row, own in self._stories.items():
            found[row] = own.waiting
        return found

    def crowded(self, until: int) -> Ints:
        return np.flatnonzero(self.waiting() > self._meter.limits.partial)

    def parts(self) -> Iterable[Ints]:
        every = (one.part for _, story in self._open() for one in story.members.values())
        return [np.fromiter(every, np.int64)]

    def _open(self) -> Iterator[tuple[int, _Story]]:
        for row, own in self._stories.items():
            for story in dict.fromkeys(story for stories in own.of.values() for story in stories):
                yield row, story

    def state(self) -> pa.Table:
        rows, texts, parts, sizes = list[int](), list[str](), list[int](), list[int]()
        for row, story in self._open():
            members = [[*document, one.feed, one.values] for document, one in story.members.items()]
            kept = {"id": story.id, "members": members, "unlisted": story.unlisted, "merged": story.merged}
            rows.append(row)
            texts.append(json.dumps(kept | {"told": story.reported}))
            parts += [one.part for one in story.members.values()]
            sizes.append(len(members))
        columns = {"row": pa.array(rows, pa.int64()), "story": pa.array(texts, pa.string())}
        return pa.table(columns | {"parts": lists(np.array(parts, np.int64), np.array(sizes, np.int64))})

    def restore(self, table: pa.Table, renumber: Renumber) -> None:
        super().restore(table, renumber)
        parts, sizes = flatten_lists(table, "parts")
        ends = np.cumsum(sizes)
        for row, text, start, end in zip(
            renumber(ints(table, "row")).tolist(), table["story"].to_pylist(), (ends - sizes).tolist(), ends.tolist(),
            strict=True,
        ):  # fmt: skip
            if row < 0:
                continue
            kept, own = json.loads(text), self._stories.setdefault(row, _Row())
            members = [(StoryDocument(*one[:3]), one[3], tuple(one[4])) for one in kept["members"]]
            values = [set[str | float]() for _ in self._definition.counts]
            story = _Story(kept["id"], members[0][0], values=values, merged=kept["merged"], reported=kept["told"])
            story.unlisted = [StoryDocument(*one) for one in kept["unlisted"]]
            for (document, feed, some), part in zip(members, parts[start:end].tolist(), strict=True):
                _join(own, story, document, _Member(feed, some, part))
            own.note_end(story, int(self._rows.within[row]))


def story_id(name: str, first: StoryDocument, opening: StoryDocument) -> str:
    """Returns the id of a story of a statement, given its first document and the one that opened it: a document may be
    the first of another story again, once one that it was in is over or was taken up, but opens one only."""
    text = json.dumps([name, first.stream, first.id, opening.stream, opening.id])
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _join(own: _Row, story: _Story, document: StoryDocument, member: _Member) -> None:
    if document not in story.members:
        story.add(document, member)
        own.of.setdefault(document, []).append(story)
        own.waiting += 1


def _take_up(own: _Row, story: _Story, other: _Story) -> None:
    _end(own, other)
    for document, member in other.members.items():
        _join(own, story, document, member)


def _end(own: _Row, story: _Story) -> None:
    story.open = False
    own.waiting -= len(story.members)
    for document in story.members:
        of = own.of[document]
        of.remove(story)
        if not of:
            del own.of[document]


def _closed(own: _Row, lasting: int, until: int) -> Iterator[_Changed]:
    while own.ends and own.ends[0][0] < until:
        at, _, story = heappop(own.ends)
        if story.open and at == story.first.time + lasting + 1:
            _end(own, story)
            yield _Changed(story, "closed", at, story.counts(), story.first, (), max(story.members))


def _json(story: _Story, documents: Iterable[StoryDocument]) -> str:
    """Returns documents as JSON lists of stream, id, time and feed."""
    rows = [[one.stream, one.id, one.time, story.members[one].feed] for one in documents]
    return json.dumps(rows, ensure_ascii=False)

"""Reads a query's newest outputs, or outputs by number, as matches with items and reasons. Works in any thread, and
builds an answer once for all queries of its form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain, islice

from common.bounds import INFINITE
from common.tools import LruCache, gathered, in_batches
from mmqjp.answers.bindings import read_nodes
from mmqjp.answers.output import Body, Output, story_of
from mmqjp.documents.record import Record
from mmqjp.engine import Session
from mmqjp.explain.reasons import reason_of, source_places
from mmqjp.explain.terms import MOST_QUERIES, Exhausted, ReadableQuery, Reason, ShownCondition, TooLong
from mmqjp.present.item import (
    PAGE,
    PAGE_CHARACTERS,
    ShownItem,
    ShownMatch,
    ShownStory,
    StoryMember,
    host,
    item_of,
    missing_item,
    read_listed,
    read_story,
    selected_values,
    shown_members,
)
from mmqjp.present.recent import RecentAnswers, RememberedDocuments
from mmqjp.present.recipients import OutputOrder, StoredOutput
from mmqjp.queries.model import is_bare, is_event_form
from mmqjp.tables.lookup import (
    SelectFn,
    document_rows_by_id,
    span_of_outputs,
    story_lists,
    story_mergers,
    texts_by_form,
)
from xscl.text import XsclErrors

LOOKED_AT, MOST_LOOKS = 50, 40  # outputs of stories read at a time for a page, and maximum number of such reads

KEPT_CHARACTERS = 32 << 20  # maximum size of cached answers, in characters; the oldest are evicted


@dataclass(frozen=True, slots=True)
class NewestPage:
    """The newest matches of a name, newest first, their positions, and the next page's cursor (None: the end)."""

    matches: tuple[ShownMatch, ...]
    places: tuple[OutputOrder, ...]
    next: OutputOrder | None


class NewestMatches:
    """Matches of a store. Each answer is built once. Thread-safe; methods raise what reading the store raises."""

    def __init__(self, recent: RecentAnswers) -> None:
        self.recent = recent
        self._drops = 0
        self._kept = LruCache[tuple[int, int], ShownMatch](KEPT_CHARACTERS, _size)

    def newest(self, name: str, before: OutputOrder | None, most: int, *, numbered: bool = False) -> NewestPage:
        """Returns a name's newest outputs before a position. Unless `numbered`, `seq` may be -1, and `xml` is empty."""
        self.forget_what_was_dropped()
        outputs = self.recent.newest(name, before, most + 1)
        shown = outputs[:most]
        if numbered:
            groups = {one.answer.first_seq for one in shown if one.seq < 0}
            numbers = {key: seq for group in groups for key, seq in self.recent.numbers(name, group).items()}
            shown = [one._replace(seq=numbers.get(one.key[:2], one.seq)) for one in shown]
        bodies = self.recent.bodies(_later(shown)) if numbered else {}
        places = tuple(one.place for one in shown)
        return NewestPage(self._matches(shown, bodies), places, places[-1] if places and len(outputs) > most else None)

    def cards(self, name: str, before: OutputOrder | None, most: int) -> NewestPage:
        """Like `newest`, but with only the last output of each story, and without merged stories."""
        found = self.newest(name, before, most)
        if not any(match.story for match in found.matches):
            return found
        shown, at, is_end = list[StoredOutput](), before, False
        for _ in range(MOST_LOOKS):
            outputs = self.recent.newest(name, at, LOOKED_AT + 1)
            shown += self._told_last(outputs[:LOOKED_AT])
            is_end = len(outputs) <= LOOKED_AT
            if is_end or len(shown) > most:
                break
            at = outputs[LOOKED_AT - 1].place
        if len(shown) > most:
            at, is_end = shown[most - 1].place, False
        places = tuple(one.place for one in shown[:most])
        return NewestPage(self._matches(shown[:most], {}), places, None if is_end else at)

    def _told_last(self, outputs: Sequence[StoredOutput]) -> Iterator[StoredOutput]:
        bodies, select = self.recent.bodies(_later(outputs)), self.recent.select
        stories = [story_of(_xml(one, bodies))[0] for one in outputs]
        numbers = gathered((one.form, (one.answer.answer, id)) for one, id in zip(outputs, stories, strict=True) if id)
        over = set[tuple[int, str]]()
        for form, some in numbers.items():
            last = {row["story"]: row["answer"] for row in story_lists(select, form or "", {id for _, id in some})}
            mergers = story_mergers(select, form or "", min(number for number, _ in some))
            merged = {id for listed in mergers for id in read_listed(listed)[1]}
            over |= {(number, id) for number, id in some if last.get(id, number) > number or id in merged}
        yield from (one for one, id in zip(outputs, stories, strict=True) if (one.answer.answer, id) not in over)

    def between(self, after: int, until: int, name: str | None = None, *, whole: bool = True) -> tuple[ShownMatch, ...]:
        """Returns the outputs, of all names or one, with `after` < seq <= `until`, in order; with XML if `whole`."""
        self.forget_what_was_dropped()
        found = self.recent.between(after, until, name)
        return self._matches(found, self.recent.bodies(_later(found), whole=True) if whole else {})

    def numbers(self, after: int, until: int) -> list[int]:
        """Returns the numbers of the outputs that `between` gives."""
        self.forget_what_was_dropped()
        return [one.seq for one in self.recent.between(after, until)]

    def version(self) -> object:
        return self.recent.version()

    def span(self) -> tuple[int, int]:
        """Returns the numbers of the oldest stored output and of the newest one; (0, -1) if there is none."""
        return span_of_outputs(self.recent.select)

    def forget_what_was_dropped(self) -> int:
        """Clears the caches if rows were deleted. Returns the number of deletions so far."""
        drops = self.recent.drops()
        if drops != self._drops:
            self._kept.clear()
            self._drops = drops
        return drops

    def _matches(self, outputs: Sequence[StoredOutput], bodies: Mapping[int, Body]) -> tuple[ShownMatch, ...]:
        keys = [(one.answer.answer, one.key[2]) for one in outputs]  # shared by all outputs of an answer
        found = self._kept.found(keys)
        new = {key: one for key, one in zip(keys, outputs, strict=True) if key not in found}
        for key, match in zip(new, shown_matches(self.recent, list(new.values())), strict=True):
            found[key] = match = replace(match, output=replace(match.output, xml=""))  # the XML may be long
            if all(item.is_kept for item in match.items):
                self._kept.put(key, match)
        return tuple(
            replace(match, output=replace(match.output, query=one.name, id=one.id, seq=one.seq, xml=_xml(one, bodies)))
            for one, match in zip(outputs, map(found.__getitem__, keys), strict=True)
        )


def _later(outputs: Iterable[StoredOutput]) -> set[int]:
    """The numbers of answers, without those of earlier formats."""
    return {one.answer.answer for one in outputs if one.xml is None}


def _size(match: ShownMatch) -> int:
    return 2_000 + sum(len(text) for _, text in match.selected)


def _xml(one: StoredOutput, bodies: Mapping[int, Body]) -> str:
    if one.xml is not None:
        return one.xml
    return "" if (body := bodies.get(one.answer.answer)) is None else body.xml(one.name)


def shown_matches(
    recent: RecentAnswers, outputs: Sequence[StoredOutput], *, reasons: bool = True
) -> Iterator[ShownMatch]:
    """Yields outputs as matches, whose XML was read only where it has values."""
    bodies = recent.bodies(_later(one for one in outputs if any(selects_values(text, one.form) for text in one.texts)))
    wanted = []
    for one in outputs:
        answer = one.answer
        output = Output(
            one.name, answer.t0, answer.t1, answer.documents, answer.streams, read_nodes(answer.nodes),
            _xml(one, bodies), one.id, one.seq,
        )  # fmt: skip
        wanted.append(UnexplainedOutput(output, answer.behind[:MOST_MATCHES], one.texts, one.form))
    return (match for match, _ in explained_matches(wanted, recent.documents, reasons=reasons))


@dataclass(frozen=True, slots=True)
class UnexplainedOutput:
    """An output without a reason: the docids of its matches, the candidate texts of its query, and the id of their form
    (None in earlier formats)."""

    output: Output
    behind: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]
    form: str | None


def explained_matches(
    outputs: Sequence[UnexplainedOutput], documents: RememberedDocuments, *, reasons: bool = True, whole: bool = False
) -> Iterator[tuple[ShownMatch, str]]:
    """Yields outputs as matches, with the texts of their queries, "" where the reason does not determine the query.
    Without `reasons`, none is searched for; unless `whole`, reasons have only joined values and join conditions, and
    stories only the members that lists show."""
    records = documents.with_parts({docid for one in outputs for docids in one.behind for docid in docids})
    stories = dict(_stories(outputs, documents.select, whole=whole))
    wanted = (source for place, one in enumerate(outputs) if place not in stories for source in _sources(one.output))
    named = ((member.id, member.stream) for _, members in stories.values() for member in members)
    items = _source_items(chain(wanted, named), records, documents)
    for place, one in enumerate(outputs):
        xml = one.output.xml
        if place in stories:
            story, members = stories[place]
            yield ShownMatch(one.output, tuple(_member_item(member, items) for member in members), story=story), ""
            continue
        selects = xml and any(selects_values(text, one.form) for text in one.texts)
        reason, text = _reason(one, records, whole=whole) if reasons else (None, "")
        shown = tuple(items[source] for source in _sources(one.output))
        yield ShownMatch(one.output, shown, reason, selected_values(xml) if selects else ()), text


def _stories(
    outputs: Sequence[UnexplainedOutput], select: SelectFn, *, whole: bool
) -> Iterator[tuple[int, tuple[ShownStory, list[StoryMember]]]]:
    """Yields the places of the outputs of stories, each with its story and the members to show, in order. Each output
    of a story lists only members that earlier ones did not."""
    of_form = gathered((one.form or "", place) for place, one in enumerate(outputs) if one.output.story)
    for form, places in of_form.items():
        lists = StoryLists(select, form, {outputs[place].output.story for place in places})
        for place in places:
            output = outputs[place].output
            story, named = read_story(output.xml)
            members = sorted({*named, *lists.members(story.id, output.t1, story.members)})
            yield place, (story, members if whole else shown_members(members))


class StoryLists:
    """The members and merged stories that a form's outputs list for some stories. Raises what `select` does."""

    def __init__(self, select: SelectFn, form: str, stories: Iterable[str]) -> None:
        self._lists: dict[str, list[tuple[tuple[int, int], list[StoryMember], list[str]]]] = {}
        wanted = set(stories)
        while wanted := wanted - self._lists.keys():
            self._lists |= {id: [] for id in wanted}
            for row in story_lists(select, form, wanted):
                at = row["t1"], row["members"]
                self._lists[row["story"]].append((at, *read_listed(row["listed"])))
            wanted = {id for one in wanted for *_, merged in self._lists[one] for id in merged}

    def members(self, story: str, until: int, count: int = INFINITE) -> set[StoryMember]:
        """Returns the members of a story at a time, when it had at most `count`."""
        found, of = set[StoryMember](), [story]
        for id in of:  # grows during the loop
            for at, members, merged in self._lists[id]:
                if at <= (until, count if id == story else INFINITE):
                    found.update(members)
                    of += [other for other in merged if other not in of]
        return found


def _sources(output: Output) -> list[tuple[str, str]]:
    return list(zip(output.documents, output.streams, strict=True))


def _member_item(member: StoryMember, items: Mapping[tuple[str, str], ShownItem]) -> ShownItem:
    """The item of a story's member; a placeholder if the document is no longer stored."""
    item = items[member.id, member.stream]
    return item if item.is_kept else replace(item, time=member.time, site=host(member.feed))


MOST_MATCHES, MAX_REASON_STEPS = 100, 200_000
"""Maximum number of matches behind an output searched for bindings, and of steps for a reason (about a second)."""


def stored_parts(documents: RememberedDocuments, behind: Sequence[tuple[int, ...]]) -> list[tuple[Record, ...]]:
    """Returns the block documents of each match, given by its docids; () if one of them is no longer stored."""
    records = documents.with_parts(docid for docids in behind for docid in docids)
    return [block_documents(docids, records) for docids in behind]


def _source_items(
    sources: Iterable[tuple[str, str]], records: Mapping[int, Record], documents: RememberedDocuments
) -> dict[tuple[str, str], ShownItem]:
    """Returns the items of documents by id and stream. Reads those not in `records`; `documents` caches them."""
    wanted = set(sources)
    external = (((one.id, one.stream), one) for one in records.values() if one.kind == "external")
    found = {key: documents.item(one) for key, one in external if key in wanted}
    if missing := wanted - found.keys():
        for row in document_rows_by_id(documents.select, {id for id, _ in missing}):
            key = row["id"], row["stream"]
            if row["kind"] == "external" and key in missing:
                found[key] = item_of(*key, row["t0"], row["xml"])
    return {key: found.get(key) or missing_item(*key) for key in wanted}


@lru_cache(10_000)
def selects_values(text: str, form: str | None) -> bool:
    """Whether a query's outputs have values instead of whole documents, like those of event queries. False if the text
    cannot be read."""
    query = _readable(text)
    return is_event_form(form or "") if query is None else not query.normal.star


def _readable(text: str) -> ReadableQuery | None:
    """A stored query; None if it is an event query or this version cannot read it."""
    with suppress(XsclErrors):
        return None if is_bare(text) else ReadableQuery.of(text)
    return None


def block_documents(docids: Sequence[int], records: Mapping[int, Record]) -> tuple[Record, ...]:
    """Returns the documents of the query's blocks; () if one of them is no longer stored."""
    if not all(docid in records and all(part in records for part in records[docid].parts) for docid in docids):
        return ()
    return tuple(records[part] for docid in docids for part in records[docid].parts)


def _reason(one: UnexplainedOutput, records: Mapping[int, Record], *, whole: bool) -> tuple[Reason | None, str]:
    """Returns the reason of an output (None: unknown) and the text of its query, "" if its documents do not determine
    it. The reason for a PATTERN has its variables, in order of time."""
    output = one.output
    if any(text.startswith("PATTERN ") for text in one.texts):
        named = ", ".join(dict.fromkeys(name.partition(".")[0] for name in output.nodes))
        return Reason(conditions=(ShownCondition((f"{named}: the pattern's conditions hold for these events",)),)), ""
    places = source_places(list(zip(output.documents, output.streams, strict=True)))
    queries = {text: query for text in one.texts if (query := _readable(text)) is not None}
    for parts in filter(None, (block_documents(docids, records) for docids in one.behind)):
        placed = [(part, places.get(part.sources[0], -1) if part.kind == "external" else -1) for part in parts]
        for text, query in queries.items():
            is_whole = whole or query.normal.op is None
            try:
                reason = reason_of(query, output.nodes, placed, MAX_REASON_STEPS, whole=is_whole)
            except (Exhausted, TooLong):
                return None, text
            if reason is not None:
                return reason, text
    return None, ""


def shown_outputs(engine: Session, outputs: Iterable[Output], *, reasons: bool = True) -> Iterator[ShownMatch]:
    """Yields a session's stored outputs as matches, in order; `reasons` take most of the time. Raises StoreError."""
    select = partial(engine.sql, trusted=True)
    for page in in_batches(outputs, PAGE, PAGE_CHARACTERS, lambda output: len(output.xml)):
        behind = engine.matches_behind(page) if reasons else {}
        texts = texts_by_form(select, {output.query for output in page})
        unexplained = [_unexplained(one, behind.get(one.seq, ()), texts.get(one.query, {})) for one in page]
        yield from (match for match, _ in explained_matches(unexplained, RememberedDocuments(select), reasons=reasons))


def _unexplained(
    output: Output, behind: Sequence[tuple[str | None, tuple[int, ...]]], texts: Mapping[str, str]
) -> UnexplainedOutput:
    """`behind` are candidates of any query, `texts` those of the query's name, by form."""
    form = next((form for form, _ in behind if form in texts), None)
    docids = tuple(some for own, some in behind if own == form)
    if form is not None:
        return UnexplainedOutput(output, docids, (texts[form],), form)
    form = next(filter(is_event_form, texts), None)
    return UnexplainedOutput(output, docids, tuple(islice(texts.values(), MOST_QUERIES)), form)

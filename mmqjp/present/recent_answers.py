"""Remembers the newest answers, and who gets them, so that pages need not ask; of forms that are looked at, older ones.

What was committed never changes, but it may be dropped. So a new batch is read once, for all forms; and when something
was dropped, all is forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from threading import Lock, RLock
from typing import NamedTuple

import pyarrow as pa

from mmqjp.explain.why import MOST_QUERIES
from mmqjp.present.answer_table import Answer, AnswerTable, Got, Place, Told
from mmqjp.present.newest_answers import NewestAnswers, Numbered, number
from mmqjp.present.news import Known, News
from mmqjp.present.recent_news import NewsReader, Since
from mmqjp.present.recent_rows import RecentRows
from mmqjp.present.recipients import Member, Members
from mmqjp.present.remembered_documents import RememberedDocuments
from mmqjp.tables import recent_sql
from mmqjp.tables.lookup import Row, Select

OF_FORM = 200
"""So many of the newest answers of a form are read, if those of the newest batches are too few."""

MOST_ANSWERS = 60_000
"""The most answers that are so remembered; then the forms go that nobody has looked at for longest."""

TEXT_BYTES = 64 << 20
"""So much is kept of the XML of the newest answers."""

Version = Callable[[], object]
"""Returns something that is another once there is a newer batch."""


@dataclass(frozen=True, slots=True)
class OfFeed:
    """What a feed shows as of a version: the newest outputs of a name, the newest first; the greatest number of an
    output of any name, -1 if there is none; the `numbers` that the ledger notes; how often something was dropped; and
    when the first query of the name was added, None if there never was one."""

    version: object
    told: list[tuple[Answer, Member]]
    greatest: int
    numbers: str | None
    drops: int
    since: int | None


class NewOutputs(NamedTuple):
    """Who `got` the answers after a batch, up to another `batch`; how many `answers` there are in all; and `changes`,
    which has another value when other queries are registered or paused."""

    got: Got
    batch: int
    answers: int
    changes: tuple[int, int | None]


@dataclass(frozen=True, slots=True)
class _Older:
    """The newest answers of a form up to a batch. `is_whole` says that there are no others."""

    answers: AnswerTable
    is_whole: bool
    batch: int


class RecentAnswers:
    """The newest answers of a store, as of a batch that was the newest at the last look. Methods may be called in any
    thread, and raise what `select` raises."""

    def __init__(self, select: Select, version: Version, since: Since | None = None) -> None:
        """`since` tells what is committed, so that it need not be asked for."""
        self._select, self._version = select, version
        self.documents = RememberedDocuments(select)
        self._looking, self._lock = Lock(), RLock()  # whoever looks does not hold up those who need nothing newer
        self._news, self._known = NewsReader(select, since), Known()
        self._newest, self._texts = NewestAnswers(), RecentRows(TEXT_BYTES)
        self._older: OrderedDict[str, _Older] = OrderedDict()
        self._count = self._drops = 0
        self._members: Members | None = Members()
        self._added: dict[str, int] = {}
        self._made_for: object = object()

    def drops(self) -> int:
        """Returns how often something was dropped. What was read before must not be shown any more."""
        self._look()
        return self._drops

    def newest(self, name: str, before: Place | None, most: int) -> list[tuple[Answer, Member]] | None:
        """Returns the newest outputs of a name, the newest first, before one that is given by the `first_seq` and the
        `place` of its answer, and its qid. None if they are not all remembered."""
        self._look()
        self._read_older(name, before, most)
        with self._lock:
            return self._newest_of(name, before, most)

    def of_feed(self, name: str, most: int) -> OfFeed | None:
        """Returns the newest outputs of a name with the numbers of the same batch. None if they are not all
        remembered."""
        self._look()
        self._read_older(name, None, most)
        with self._lock:
            told = self._newest_of(name, None, most)
            since = self._added.get(name)
            if told is None:
                return None
            return OfFeed(self._made_for, told, self._known.seq, self._known.numbers, self._drops, since)

    def outputs_after(self, batch: int) -> NewOutputs | None:
        """Returns the outputs of all batches after one. None if they are not all remembered, or too many."""
        self._look()
        with self._lock:
            if self._known.has_earlier or self._members is None:
                return None
            got, known = self._newest.got_after(batch, self._members), self._known
            return None if got is None else NewOutputs(got, known.batch, known.answers, known.changes)

    def members(self, name: str) -> list[Member] | None:
        """Returns the members of a name: also those that have ended. None if they are not remembered."""
        self._look()
        with self._lock:
            return None if self._members is None else self._members.named(name)

    def output(self, id: str, group: int) -> Row | None:
        """Returns the output with an id in a group, as `mmqjp.tables.lookup.output_by_id` does. None if it is to be
        asked for there."""
        self._look()
        with self._lock:
            known_members, batch = self._members, self._known.batch
            if known_members is None:
                return None
            numbered = self._newest.numbered(group, known_members)
        texts: dict[int, Row] = {}
        if numbered is None:
            rows = self._select(recent_sql.answers_of_group(group))
            if any(other > batch for other in rows["batch"].to_pylist()):
                return None  # there may be members that are not known yet
            texts = {row["answer"]: row for row in rows.select(["answer", "head", "tail"]).to_pylist()}
            numbered = number(self._table(rows.drop_columns(["head", "tail"])), group, known_members) or []
        found = next((one for one in numbered if one.member.identity.id(one.answer.choice.encode()) == id), None)
        if found is None:
            return None
        seq, answer, member = found
        with self._lock:
            row = (texts or self._texts.rows([answer.answer])).get(answer.answer)
        if row is None and (row := self._text(answer)) is None:
            return None
        name = member.name
        xml = row["tail"] if row["head"] == "" else row["head"] + name + row["tail"]
        of_name = sorted({one.text for one in known_members.named(name) if one.form == answer.form})
        told = {"id": id, "seq": seq, "qid": member.qid, "query": name, "xml": xml, "texts": of_name[:MOST_QUERIES]}
        known: Row = answer._asdict() | told
        return known

    def numbers(self, name: str, group: int) -> list[int] | None:
        """Returns the numbers of the outputs of a name in a group, in order. None if they are not remembered."""
        with self._lock:
            numbered = None if self._members is None else self._newest.numbered(group, self._members)
            return None if numbered is None else [one.seq for one in numbered if one.member.name == name]

    def latest(self, most: int) -> list[Numbered] | None:
        """Returns the newest outputs of all names, the newest first. None if they are not all remembered."""
        self._look()
        with self._lock:
            if self._known.has_earlier or self._members is None:
                return None
            found: list[Numbered] = []
            for group in self._newest.groups():
                if len(found) >= most:
                    return found[:most]
                if (numbered := self._newest.numbered(group, self._members)) is None:
                    return None
                found += reversed(numbered)
            return found[:most] if len(found) >= most else None

    # ------------------------------------------------------------ what is remembered

    def _newest_of(self, name: str, before: Place | None, most: int) -> list[tuple[Answer, Member]] | None:
        if self._known.has_earlier or self._members is None:
            return None
        found: list[Told] = []
        for members in self._members.named_by_form(name):
            got = list(islice(self._newest.newest(members, before), most))
            if len(got) < most and not self._newest.is_all:
                if (older := self._older_of(members.form)) is None:
                    return None
                got += islice(older.answers.newest(members, before, self._newest.first_batch), most - len(got))
                if len(got) < most and not older.is_whole:
                    return None
            found += got
        found.sort(key=lambda one: one[0], reverse=True)
        return [(answer, member) for _, answer, member in found[:most]]

    def _older_of(self, form: str) -> _Older | None:
        """The answers of a form that are older than the newest of all. None if they are not remembered."""
        known, first = self._older.get(form), self._newest.first_batch
        if known is None or known.batch < (self._known.batch if first is None else first - 1):
            return None
        self._older.move_to_end(form)
        return known

    def _read_older(self, name: str, before: Place | None, most: int) -> None:
        """Reads older answers of the forms of a name if so many outputs are not remembered. Others may look at what is
        remembered meanwhile."""
        with self._lock:
            if self._known.has_earlier or self._members is None or self._newest.is_all:
                return
            batch, drops = self._known.batch, self._drops
            missing = [
                members.form
                for members in self._members.named_by_form(name)
                if len(list(islice(self._newest.newest(members, before), most))) < most
                and self._older_of(members.form) is None
            ]
        for form in missing:
            rows = self._select(recent_sql.answers_of_form(form, batch, OF_FORM))
            older = _Older(self._table(rows), len(rows) < OF_FORM, batch)
            with self._lock:
                if drops != self._drops:
                    return
                known = self._older.pop(form, None)
                self._older[form] = older
                self._count += len(older.answers) - (0 if known is None else len(known.answers))
                while self._count > MOST_ANSWERS and len(self._older) > 1:
                    self._count -= len(self._older.popitem(last=False)[1].answers)

    def _look(self) -> None:
        """Reads what is new, unless there is no newer batch."""
        version = self._version()
        if not is_newer(version, self._made_for):
            return
        with self._looking:
            if is_newer(version, self._made_for):
                news = self._news.read(self._known, is_first=self._newest.is_empty, are_many=self._members is None)
                with self._lock:
                    self._take(news)
                    self._made_for = version

    def _take(self, news: News) -> None:
        if news.is_dropped:
            self._drops += 1
            self._texts.clear()
            self.documents.forget()
        if news.members is not None or news.are_many:
            self._members, self._added = news.members, news.added
            self._newest.forget_numbers()
        has_new = news.is_first or news.known.batch != self._known.batch
        if news.is_first or (has_new and news.answers is None):
            self._newest.clear()
            self._older.clear()
            self._count = 0
        if news.answers is not None:
            if news.is_first:
                self._newest.begin(news.answers, is_all=news.is_all)
            else:
                self._newest.add(news.answers)
        if news.documents is not None:
            self.documents.add(news.documents)
        if news.texts is not None:
            self._texts.add(news.texts)
        self._known = news.known

    def _table(self, rows: pa.Table) -> AnswerTable:
        return self._news.table_of(rows, are_withheld=self._known.are_withheld)

    def _text(self, answer: Answer) -> Row | None:
        """Reads the XML of an answer. None if it is gone."""
        rows = self._select(recent_sql.answers_of_group(answer.first_seq)).to_pylist()
        return next((row for row in rows if row["answer"] == answer.answer), None)


def is_newer(version: object, before: object) -> bool:
    """Whether a version is newer than another one, or at least another: numbers grow."""
    return version > before if isinstance(version, int) and isinstance(before, int) else version != before

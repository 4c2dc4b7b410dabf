"""Remembers the newest answers of the forms that are looked at, and who gets them, so that pages need not ask.

What was committed never changes, but it may be dropped. So a new batch is read once, for all forms that are remembered;
and when something was dropped, all is forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock, RLock

from mmqjp.explain.why import MOST_QUERIES
from mmqjp.present.recent_groups import Numbered, RecentGroups, number
from mmqjp.present.recent_news import Known, News, NewsReader
from mmqjp.present.recent_rows import RecentRows
from mmqjp.present.recipients import Answer, Member, Members, recipients
from mmqjp.present.remembered_documents import RememberedDocuments
from mmqjp.tables import recent_sql
from mmqjp.tables.lookup import Row, Select

OF_FORM = 200
"""The most answers of a form that are remembered."""

MOST_ANSWERS = 60_000
"""The most answers that are remembered; then the forms go that nobody has looked at for longest."""

TEXT_BYTES = 64 << 20
"""So much is kept of the XML of the newest answers."""

Place = tuple[int, int, int]
"""Where an output stands among those of its name: the first number of its group, its place there, and the qid."""

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


@dataclass(slots=True)
class _Form:
    """The newest answers of a form, the newest last. `is_whole` says that there are no others, and `is_deep` that there
    are as many as are remembered of a form."""

    answers: list[Answer]
    is_whole: bool
    is_deep: bool = True


class RecentAnswers:
    """The newest answers of a store, as of a batch that was the newest at the last look. Methods may be called in any
    thread, and raise what `select` raises."""

    def __init__(self, select: Select, version: Version) -> None:
        self._select, self._version = select, version
        self.documents = RememberedDocuments(select)
        self._looking, self._lock = Lock(), RLock()  # whoever looks does not hold up those who need nothing newer
        self._news, self._known = NewsReader(select), Known()
        self._groups, self._texts = RecentGroups(), RecentRows("answer", TEXT_BYTES)
        self._forms: OrderedDict[str, _Form] = OrderedDict()
        self._count = self._drops = 0
        self._members: Members | None = Members()
        self._added: dict[str, int] = {}
        self._greatest = -1
        self._numbers: str | None = None
        self._made_for: object = object()
        self._has_earlier = self._are_withheld = False

    def drops(self) -> int:
        """Returns how often something was dropped. What was read before must not be shown any more."""
        self._look()
        return self._drops

    def newest(self, name: str, before: Place | None, most: int) -> list[tuple[Answer, Member]] | None:
        """Returns the newest outputs of a name, the newest first, before one that is given by the `first_seq` and the
        `place` of its answer, and its qid. None if they are not all remembered."""
        self._look()
        with self._lock:
            return self._newest_of(name, before, most)

    def of_feed(self, name: str, most: int) -> OfFeed | None:
        """Returns the newest outputs of a name with the numbers of the same batch. None if they are not all
        remembered."""
        self._look()
        with self._lock:
            told = self._newest_of(name, None, most)
            since = self._added.get(name)
            if told is None:
                return None
            return OfFeed(self._made_for, told, self._greatest, self._numbers, self._drops, since)

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
            known_members = self._members
            if known_members is None:
                return None
            texts: dict[int, Row] = {}
            numbered = self._groups.numbered(group, known_members)
            if numbered is None:
                rows = self._select(recent_sql.answers_of_group(group)).to_pylist()
                if any(row["batch"] > self._known.batch for row in rows):
                    return None  # there may be members that are not known yet
                texts = {row["answer"]: row for row in rows}
                numbered = number(self._whole(rows), known_members) or []
            found = next((one for one in numbered if one.member.identity.id(one.answer.choice.encode()) == id), None)
            if found is None:
                return None
            seq, answer, member = found
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
            numbered = None if self._members is None else self._groups.numbered(group, self._members)
            return None if numbered is None else [one.seq for one in numbered if one.member.name == name]

    def latest(self, most: int) -> list[Numbered] | None:
        """Returns the newest outputs of all names, the newest first. None if they are not all remembered."""
        self._look()
        with self._lock:
            if self._has_earlier or self._members is None:
                return None
            found: list[Numbered] = []
            for group in self._groups.newest_first():
                if len(found) >= most:
                    return found[:most]
                if (numbered := self._groups.numbered(group, self._members)) is None:
                    return None
                found += reversed(numbered)
            return found[:most] if len(found) >= most else None

    # ------------------------------------------------------------ what is remembered

    def _newest_of(self, name: str, before: Place | None, most: int) -> list[tuple[Answer, Member]] | None:
        if self._has_earlier or self._members is None:
            return None
        members = self._members.named(name)
        found: list[tuple[Place, Answer, Member]] = []
        for form in {member.form for member in members}:
            known = self._form(form)
            got = _newest(known.answers, members, before, most)
            if len(got) < most and not known.is_deep:
                known = self._read(form)
                got = _newest(known.answers, members, before, most)
            if len(got) < most and not known.is_whole:
                return None
            found += got
        found.sort(key=lambda one: one[0], reverse=True)
        return [(answer, member) for _, answer, member in found[:most]]

    def _form(self, form: str) -> _Form:
        known = self._forms.get(form) or self._read(form)
        self._forms.move_to_end(form)
        return known

    def _read(self, form: str) -> _Form:
        rows = self._select(recent_sql.answers_of_form(form, self._known.batch, OF_FORM)).to_pylist()
        before = self._forms.pop(form, None)
        self._count -= 0 if before is None else len(before.answers)
        self._put(form, _Form(self._whole(rows[::-1]), len(rows) < OF_FORM))
        return self._forms[form]

    def _put(self, form: str, known: _Form) -> None:
        self._forms[form] = known
        self._count += len(known.answers)
        while self._count > MOST_ANSWERS and len(self._forms) > 1:
            self._count -= len(self._forms.popitem(last=False)[1].answers)

    def _look(self) -> None:
        """Reads what is new, unless there is no newer batch."""
        version = self._version()
        if not is_newer(version, self._made_for):
            return
        with self._looking:
            if is_newer(version, self._made_for):
                news = self._news.read(self._known, is_first=not self._forms, are_many=self._members is None)
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
            self._groups.forget_numbers()
        if news.is_first or news.answers is None:
            self._forms.clear()
            self._groups.clear()
            self._count = 0
        if news.is_first:
            self._put_first(news)
        else:
            self._add(news.answers or [])
        if news.documents is not None:
            self.documents.add(news.documents)
        if news.texts is not None:
            self._texts.add(news.texts)
        self._known = news.known
        self._greatest, self._numbers = news.greatest, news.numbers
        self._has_earlier, self._are_withheld = news.has_earlier, news.are_withheld

    def _put_first(self, news: News) -> None:
        """Remembers the newest answers of all forms."""
        answers, of_form = news.answers or [], dict[str, list[Answer]]()
        for answer in answers:
            of_form.setdefault(answer.form, []).append(answer)
        for form, some in of_form.items():
            is_whole = news.is_all and len(some) <= OF_FORM
            self._put(form, _Form(some[-OF_FORM:], is_whole, is_whole or len(some) >= OF_FORM))
        # The first batch may be there in part.
        self._groups.add([one for one in answers if news.is_all or one.batch != answers[0].batch])

    def _add(self, answers: Sequence[Answer]) -> None:
        """Adds the answers of new batches to the forms that are remembered."""
        self._groups.add(answers)
        for answer in answers:
            known = self._forms.get(answer.form)
            if known is None:
                continue
            known.answers.append(answer)
            self._count += 1
            if len(known.answers) > OF_FORM:
                del known.answers[0]
                self._count -= 1
                known.is_whole = False

    def _whole(self, rows: Sequence[Row]) -> list[Answer]:
        return self._news.whole(rows, are_withheld=self._are_withheld)

    def _text(self, answer: Answer) -> Row | None:
        """Reads the XML of an answer. None if it is gone."""
        rows = self._select(recent_sql.answers_of_group(answer.first_seq)).to_pylist()
        return next((row for row in rows if row["answer"] == answer.answer), None)


def is_newer(version: object, before: object) -> bool:
    """Whether a version is newer than another one, or at least another: numbers grow."""
    return version > before if isinstance(version, int) and isinstance(before, int) else version != before


def _newest(
    answers: Sequence[Answer], members: Sequence[Member], before: Place | None, most: int
) -> list[tuple[Place, Answer, Member]]:
    """The newest outputs among some answers, the newest first, for some members: `most` of them, or some more."""
    found: list[tuple[Place, Answer, Member]] = []
    for answer in reversed(answers):
        if len(found) >= most:
            break
        for member in recipients(answer, members):
            place = answer.first_seq, answer.place, member.qid
            if before is None or place < before:
                found.append((place, answer, member))
    return found

"""Remembers the newest answers of the forms that are looked at, and who gets them, so that pages need not ask.

What was committed never changes, but it may be dropped. So a new batch is read once, for all forms that are remembered;
and when something was dropped, all is forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import RLock
from typing import Any

from join_stage.store.reading import QuestionRefused
from mmqjp.explain.why import MOST_QUERIES
from mmqjp.present.recipients import Answer, Member, Members, recipients
from mmqjp.tables import page_sql, recent_sql
from mmqjp.tables.lookup import Row, Select

OF_FORM = 200
"""The most answers of a form that are remembered."""

MOST_ANSWERS = 60_000
"""The most answers that are remembered; then the forms go that nobody has looked at for longest."""

AT_FIRST = 20_000
"""So many of the newest answers are read at first, of whatever form: that takes no longer than to read some forms."""

MOST_NEW = 20_000
"""If there are more new answers, all are forgotten instead."""

MOST_MEMBERS = 50_000
"""The most members that are remembered; if there were ever more, none is, and pages ask instead."""

MOST_RECIPIENTS = 20_000
"""The largest group of outputs among which one is looked for here."""

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
        self._lock = RLock()
        self._forms: OrderedDict[str, _Form] = OrderedDict()
        self._count = self._drops = 0
        self._members: Members | None = Members()
        self._registered = -1
        self._added: dict[str, int] = {}
        self._greatest = -1
        self._numbers: str | None = None
        self._made_for: object = object()
        self._batch = self._docid = -1
        self._answers = self._documents = 0
        self._has_earlier = self._are_withheld = False

    def drops(self) -> int:
        """Returns how often something was dropped. What was read before must not be shown any more."""
        with self._lock:
            self._look()
            return self._drops

    def newest(self, name: str, before: Place | None, most: int) -> list[tuple[Answer, Member]] | None:
        """Returns the newest outputs of a name, the newest first, before one that is given by the `first_seq` and the
        `place` of its answer, and its qid. None if they are not all remembered."""
        with self._lock:
            self._look()
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

    def of_feed(self, name: str, most: int) -> OfFeed | None:
        """Returns the newest outputs of a name with the numbers of the same batch. None if they are not all
        remembered."""
        with self._lock:
            told = self.newest(name, None, most)
            since = self._added.get(name)
            if told is None:
                return None
            return OfFeed(self._made_for, told, self._greatest, self._numbers, self._drops, since)

    def members(self, name: str) -> list[Member] | None:
        """Returns the members of a name: also those that have ended. None if they are not remembered."""
        with self._lock:
            self._look()
            return None if self._members is None else self._members.named(name)

    def output(self, id: str, group: int) -> Row | None:
        """Returns the output with an id in a group, as `mmqjp.tables.lookup.output_by_id` does. None if it is to be
        asked for there."""
        with self._lock:
            self._look()
            known_members = self._members
            if known_members is None:
                return None
            rows = self._select(recent_sql.answers_of_group(group)).to_pylist()
            if any(row["batch"] > self._batch for row in rows):
                return None  # there may be members that are not known yet
            answers = self._whole(rows)
            members = {answer.form: known_members.of_form(answer.form) for answer in answers}
        if sum(len(members[answer.form]) for answer in answers) > MOST_RECIPIENTS:
            return None
        got = [
            (member.name, answer.place, member.qid, member, answer, row)
            for answer, row in zip(answers, rows, strict=True)
            for member in recipients(answer, members[answer.form])
        ]
        got.sort(key=lambda one: one[:3])
        for place, (name, _, qid, member, answer, row) in enumerate(got):
            if member.identity.id(answer.choice.encode()) == id:
                xml = row["tail"] if row["head"] == "" else row["head"] + name + row["tail"]
                texts = sorted({one.text for one in known_members.named(name) if one.form == answer.form})
                found = {"behind": answer.behind, "texts": texts[:MOST_QUERIES], "seq": answer.first_seq + place}
                known: Row = row | found | {"qid": qid, "query": name, "xml": xml, "id": id}
                return known
        return None

    # ------------------------------------------------------------ what is remembered

    def _form(self, form: str) -> _Form:
        known = self._forms.get(form) or self._read(form)
        self._forms.move_to_end(form)
        return known

    def _read(self, form: str) -> _Form:
        rows = self._select(recent_sql.answers_of_form(form, self._batch, OF_FORM)).to_pylist()
        before = self._forms.pop(form, None)
        self._count -= 0 if before is None else len(before.answers)
        self._put(form, _Form(self._whole(rows[::-1]), len(rows) < OF_FORM))
        return self._forms[form]

    def _put(self, form: str, known: _Form) -> None:
        self._forms[form] = known
        self._count += len(known.answers)
        while self._count > MOST_ANSWERS and len(self._forms) > 1:
            self._count -= len(self._forms.popitem(last=False)[1].answers)

    def _read_first(self, until: int, there_are: int) -> None:
        """Reads the newest answers of all forms."""
        rows = self._select(recent_sql.newest_answers(until, AT_FIRST)).to_pylist()
        of_form: dict[str, list[Answer]] = {}
        for answer in self._whole(rows):
            of_form.setdefault(answer.form, []).append(answer)
        for form, answers in of_form.items():
            is_whole = len(rows) == there_are and len(answers) <= OF_FORM
            self._put(form, _Form(answers[-OF_FORM:], is_whole, is_whole or len(answers) >= OF_FORM))

    def _look(self) -> None:
        """Reads what is new, unless there is no newer batch."""
        version = self._version()
        if version == self._made_for:
            return
        (told,) = self._select(recent_sql.heading(self._batch, self._docid)).to_pylist()
        if (told["answers"], told["documents"]) != (self._answers, self._documents):
            self._drops += 1
            self._forget()
        if told["registered"] != self._registered:
            self._look_who_is_there(told["registered"])
        batch = -1 if told["batch"] is None else told["batch"]
        self._are_withheld = told["withheld"] > 0
        if told["new"] > MOST_NEW:
            self._forget()
        try:
            if self._members is not None and not self._forms:
                self._read_first(batch, told["answers"] + told["new"])
            elif told["new"]:
                self._add(self._batch, batch)
        except QuestionRefused:  # they are too large together
            self._forget()
        self._batch, self._docid = batch, -1 if told["docid"] is None else told["docid"]
        self._answers = told["answers"] + told["new"]
        self._documents = told["documents"] + told["arrived"]
        self._has_earlier = told["earlier"] > 0
        self._greatest, self._numbers = -1 if told["seq"] is None else told["seq"], told["numbers"]
        self._made_for = version

    def _look_who_is_there(self, registered: int) -> None:
        """Reads the members, unless they are too many, or their texts too long."""
        self._members, self._added, self._registered = None, {}, registered
        if registered <= 2 * MOST_MEMBERS:  # a query and its membership
            with suppress(QuestionRefused):
                self._members = Members(self._select(recent_sql.MEMBERS).to_pylist())
                self._added = {row["name"]: row["added_at"] for row in self._select(recent_sql.ADDED).to_pylist()}

    def _forget(self) -> None:
        self._forms.clear()
        self._count = 0

    def _add(self, after: int, until: int) -> None:
        """Adds the answers of new batches to the forms that are remembered."""
        found = self._select(recent_sql.answers_between(after, until))
        rows = [row for row in found.to_pylist() if row["form"] in self._forms]
        for answer in self._whole(rows):
            known = self._forms[answer.form]
            known.answers.append(answer)
            self._count += 1
            if len(known.answers) > OF_FORM:
                del known.answers[0]
                self._count -= 1
                known.is_whole = False

    def _whole(self, rows: Sequence[Row]) -> list[Answer]:
        """Rows of `answers` with what is behind them, and who does not get them."""
        if not rows:
            return []
        numbers = {row["answer"] for row in rows}
        behind: dict[int, list[tuple[int, ...]]] = {}
        withheld: dict[int, set[int]] = {}
        are_many = len(numbers) > OF_FORM
        sql = recent_sql.matches_since(min(numbers)) if are_many else page_sql.matches_behind(numbers)
        for row in _among(self._select(sql).to_pylist(), numbers):
            docids = (row["docid1"],) if row["docid2"] is None else (row["docid1"], row["docid2"])
            behind.setdefault(row["answer"], []).append(docids)
        if self._are_withheld:  # most stores have none
            listed = page_sql.listed(numbers)
            sql = recent_sql.withheld_since(min(numbers)) if are_many else recent_sql.withheld_from(listed)
            for row in _among(self._select(sql).to_pylist(), numbers):
                withheld.setdefault(row["answer"], set()).add(row["qid"])
        return [_answer(row, behind, withheld) for row in rows]


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


def _among(rows: Iterable[Row], numbers: set[int]) -> Iterable[Row]:
    return (row for row in rows if row["answer"] in numbers)


def _answer(row: Row, behind: dict[int, list[tuple[int, ...]]], withheld: dict[int, set[int]]) -> Answer:
    given: dict[str, Any] = {name: row[name] for name in Answer._fields[:-2]}
    given |= {"documents": tuple(row["documents"]), "streams": tuple(row["streams"])}
    number = row["answer"]
    return Answer(**given, behind=tuple(behind.get(number, ())), withheld=frozenset(withheld.get(number, ())))

"""Telling: which outputs of queries with ONCE PER are told, and which were told before.

A step puts these outputs off until it has found all that they are made of. Then those of one query are decided
together, in the order of their numbers. So what is told does not depend on the order in which a step finds them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from mmqjp.answers.answer import Answer
from mmqjp.answers.shared_account import Share, SharedAccount
from mmqjp.documents.record import Inputs, Record, published_record
from mmqjp.queries.forms import Form
from mmqjp.queries.lineage import behind
from mmqjp.queries.model import HiddenStream, Owner, Subscription
from mmqjp.queries.registry import Registry
from mmqjp.state.told import AskedKey, Told
from mmqjp.tables.told import ToldRow

INT64_MAX = 2**63 - 1

Key = tuple[int, int]
"""The halves of the digest of a key."""


@dataclass(eq=False, slots=True)
class PutOff:
    """An answer that is not decided yet, with what is needed to give it to those of its `share` who have not told all
    of its `keys`. For queries that are `backfilled`, what they PUBLISH appears now."""

    answer: Answer
    inputs: Inputs
    account: SharedAccount
    share: Share
    backfilled: Collection[Owner]
    keys: set[Key] = field(default_factory=set)


Undecided = tuple[Set[str], Set[HiddenStream]]
"""The ids of forms, and the hidden streams, of which a step may still find something."""

AllPutOff = dict[Form, dict[Answer, PutOff]]
"""What a step has put off."""


def key_of(texts: Sequence[str]) -> Key:
    """Returns the digest of a key, which is the same in any process."""
    digest = blake2b("".join([f"{len(text)}:{text}" for text in texts]).encode(), digest_size=16).digest()
    return int.from_bytes(digest[:8], signed=True), int.from_bytes(digest[8:], signed=True)


def as_published(query: Subscription, answer: Answer, inputs: Inputs, *, within: bool) -> Record:
    """Returns an answer as a document of a query's stream."""
    return published_record(
        query.name, inputs, answer.body.xml(query.name), query.identity.id(answer.choice.encode()), within=within
    )


@dataclass(frozen=True, slots=True)
class ToldNow:
    """What was decided: the answers that anybody gets, with the documents for readers of those who do, and the rows of
    the table `untold`."""

    answers: list[Answer] = field(default_factory=list)
    documents: list[Record] = field(default_factory=list)
    untold: list[tuple[int, int]] = field(default_factory=list)


class Telling:
    """Decides, within batches, what was put off."""

    def __init__(self, registry: Registry, told: Told) -> None:
        self._registry, self._told = registry, told

    def decide(self, waiting: AllPutOff, batch: int, undecided: Undecided = (frozenset(), frozenset())) -> ToldNow:
        """Decides what depends on nothing that was put off, too, nor on what is `undecided`, and takes it out of
        `waiting`."""
        due = [(form, waiting.pop(form)) for form in self._due(waiting, undecided)]
        found = ToldNow()
        recipients = [
            (form, one, _recipients(one, batch))
            for form, answers in due
            for one in sorted(answers.values(), key=lambda one: one.answer.order)
        ]
        ends = self._told.ends(_asked(recipients))
        rows: list[ToldRow] = []
        for form, one, some in recipients:
            gone = [query for query in some if not _tell(form, query, one, ends, rows)]
            found.untold.extend((match, query.qid) for query in gone for match in one.answer.matches)
            if len(gone) < len(some):
                one.answer.withheld = (*one.answer.withheld, *(query.qid for query in gone))
                found.answers.append(one.answer)
                found.documents.extend(self._published(form, one, set(some).difference(gone)))
        self._told.save(rows)
        return found

    def _due(self, waiting: AllPutOff, undecided: Undecided) -> list[Form]:
        """Returns the forms that read nothing which others that wait may PUBLISH."""
        forms, streams = undecided
        if not (streams or any(self._registry.read_of(form_id) for form_id in (*forms, *(f.id for f in waiting)))):
            return list(waiting)
        ids = {form.id for form in waiting}.union(forms)
        ready = []
        for form in waiting:
            queries, hidden = behind(self._registry, form.audience.queries[0])  # all of a form read the same streams
            # Its own queries may be undecided, too: then more of its answers are to come.
            if streams.isdisjoint(hidden) and not any(one.form_id in ids for one in queries):
                ready.append(form)
        return ready

    def _published(self, form: Form, one: PutOff, told: set[Subscription]) -> Iterator[Record]:
        for query in self._registry.read_of(form.id):
            if query in told:
                yield as_published(query, one.answer, one.inputs, within=query not in one.backfilled)


def _asked(recipients: Iterable[tuple[Form, PutOff, list[Subscription]]]) -> dict[AskedKey, tuple[int, int]]:
    """Returns what answers ask for: the keys, and the least and greatest end that can be near one of them."""
    asked: dict[AskedKey, tuple[int, int]] = {}
    for form, one, queries in recipients:
        window = INT64_MAX if (once := _window(form)) is None else once  # without one, a key has one end
        low, high = max(one.answer.t1 - window, -INT64_MAX), min(one.answer.t1 + window, INT64_MAX)
        for query in queries:
            for key in one.keys:
                known = asked.get(whole := (query.qid, *key))
                asked[whole] = (low, high) if known is None else (min(low, known[0]), max(high, known[1]))
    return asked


def _recipients(one: PutOff, batch: int) -> list[Subscription]:
    """Returns the members that get an answer, unless they told it before."""
    share, queries = one.share, one.account.audience.queries
    gets = one.account.members(batch).get(
        slice(None), share.width, share.appeared, share.first_qid, batch, one.answer.arrival
    )
    return [query for place in np.flatnonzero(gets).tolist() if (query := queries[place]) not in share.withheld]


def _tell(form: Form, query: Subscription, one: PutOff, ends: dict[AskedKey, list[int]], rows: list[ToldRow]) -> bool:
    """Returns whether a query tells an answer. If so, adds to `rows` what it tells, and to `ends`, which are sorted,
    when."""
    window, t1 = _window(form), one.answer.t1
    known = [ends.setdefault((query.qid, *key), []) for key in one.keys]
    near = [is_near(t1, before, window) for before in known]
    if all(near):
        return False
    for key, before, was_told in zip(one.keys, known, near, strict=True):
        if window is not None or not was_told:
            insort(before, t1)
            rows.append((query.qid, *key, t1, _until(t1, window)))
    return True


def _window(form: Form) -> int | None:
    assert form.once is not None, "only what is told once is put off"
    return form.once.window


def _until(t1: int, window: int | None) -> int | None:
    """Returns up to when a key told at `t1` is not told again; None if no document can come later."""
    return None if window is None or t1 + window > INT64_MAX else t1 + window


def is_near(t1: int, ends: Sequence[int], window: int | None) -> bool:
    """Returns whether one of the sorted `ends` is at most the window away."""
    if window is None:
        return bool(ends)
    place = bisect_left(ends, t1 - window)
    return place < len(ends) and ends[place] <= t1 + window

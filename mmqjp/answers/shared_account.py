"""Accounts of queries that are charged together: what they use of their quotas in a step, counted once for all.

A match or an answer counts for the members with a wide enough window that see its documents. So what one member has
used is a sum over charges, which is worked out only when the sum over all charges exceeds the quota.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from mmqjp.answers.charges import EVERYTHING, Book, ChargeKey, Charges, Excess, Holder, over_quota
from mmqjp.answers.looking import Looking
from mmqjp.answers.quota import NEVER, Quota, Usage, block_of
from mmqjp.documents.record import Inputs
from mmqjp.queries.audience import Audience
from mmqjp.queries.members import Ints, Members
from mmqjp.queries.model import Subscription

CHECKED_AGAIN_AFTER = 1.0625
"""Usage above the quota is worked out again for each member when it has grown by this factor."""


class Share(NamedTuple):
    """Who gets a match: members with a window of at least `width` that see its first document, `appeared`, and have at
    least `first_qid`, but not those `withheld`. `key` is whom it counts for."""

    key: ChargeKey
    width: int
    appeared: int
    first_qid: int
    withheld: tuple[Subscription, ...] = ()


class SharedAccount:
    """The account of the members of a form, or of all queries with a literal test, in one step."""

    def __init__(
        self,
        quota: Quota,
        audience: Audience,
        block: int,
        book: Book,
        others: Sequence[tuple[Book, int]],
        own: Mapping[int, Usage],
        cutoffs: Mapping[int, int],
    ) -> None:
        """`block` is the one that `book` has charges of from before the step. What is in `others` counts for the
        members, too, so many times. `own` is what is to be added for single members, by qid, and `cutoffs` has the
        arrivals from which on members get nothing."""
        self._quota, self._block, self._book, self._others, self._own = quota, block, book, others, own
        self.audience = audience
        self._until: Ints | None = None
        if cutoffs:
            self._limit(cutoffs)
        self._subsets: dict[int, Audience | None] = {0: audience if audience.queries else None}
        self._everyone: dict[int, ChargeKey] = {}
        most = self._most_own()
        outputs = sum(times * one.total.outputs for one, times in self._books())
        work = sum(times * one.total.work for one, times in self._books())
        # As long as the step has used no more than this, no member can have exceeded its quota.
        self._safe_outputs = min(quota.most_outputs, quota.most_outputs_of_block - outputs - most.outputs)
        self._safe_work = min(quota.most_work, quota.most_work_of_block - work - most.work)
        self._is_checked = False
        """Whether it has used more than that, and was checked."""
        self._excess: dict[int, Excess] = {}

    def _books(self) -> list[tuple[Book, int]]:
        return [(self._book, 1), *self._others]

    # ------------------------------------------------------------ who gets what

    def share(self, width: int, inputs: Inputs, first_qid: int) -> Share | None:
        """Returns who gets a match of these documents, `width` microseconds apart; None if nobody does."""
        audience = self._audience(first_qid)
        if audience is None:
            return None
        appeared = inputs.appeared
        if (
            self._until is None
            and width <= audience.narrowest
            and appeared > audience.latest_since
            and appeared > audience.latest_gap
        ):
            key = self._everyone.get(first_qid)
            if key is None:
                key = ChargeKey(audience.narrowest, audience.latest_since, first_qid, audience.latest_begun)
                self._everyone[first_qid] = key
            return Share(key, width, appeared, first_qid)
        return self._some(audience, width, inputs, first_qid)

    def _audience(self, first_qid: int) -> Audience | None:
        if first_qid not in self._subsets:
            self._subsets[first_qid] = self.audience.since_qid(first_qid)
        return self._subsets[first_qid]

    def _some(self, audience: Audience, width: int, inputs: Inputs, first_qid: int) -> Share | None:
        """Returns who gets a match that not everyone gets."""
        appeared, windows, sinces = inputs.appeared, audience.windows, audience.sinces
        at, before = int(np.searchsorted(windows, width)), int(np.searchsorted(sinces, appeared))
        if at == len(windows) or before == 0:
            return None
        withheld = self._withheld(audience, width, inputs)
        if withheld or self._until is not None or (at and before < len(sinces)):
            members = self.audience.members
            gets = (members.windows >= width) & (members.sinces < appeared) & (members.qids >= first_qid)
            if self._until is not None:
                gets &= self._until > inputs.arrival
            if np.count_nonzero(gets) <= len(withheld):
                return None
        key = ChargeKey(int(windows[at]), int(sinces[before - 1]), first_qid, audience.latest_begun)
        return Share(key, width, appeared, first_qid, withheld)

    def _withheld(self, audience: Audience, width: int, inputs: Inputs) -> tuple[Subscription, ...]:
        """Returns the members that were paused when one of the documents came, and would get the match otherwise."""
        if inputs.appeared > audience.latest_gap:
            return ()
        return tuple(
            query
            for query in audience.gapped
            if query.since < inputs.appeared
            and width <= query.width
            and not inputs.are_seen_by(query.sees)
            and self._is_open(query, inputs.arrival)
        )

    def _is_open(self, query: Subscription, arrival: int) -> bool:
        return self._until is None or arrival < int(self._until[self.audience.place_of(query)])

    def gets(self, share: Share, query: Subscription, arrival: int) -> bool:
        """Returns whether a member gets a match of an arrival."""
        return (
            share.width <= query.width
            and query.since < share.appeared
            and share.first_qid <= query.qid
            and query not in share.withheld
            and self._is_open(query, arrival)
        )

    def members(self, batch: int) -> Members:
        """Returns the members, as of a batch in which they get nothing from their cutoffs on."""
        members = self.audience.members
        if self._until is None:
            return members
        ended = np.where(self._until < NEVER, batch, members.ended)
        return replace(members, ended=ended, ended_at=self._until)

    @property
    def is_limited(self) -> bool:
        """Whether any member has a cutoff."""
        return self._until is not None

    @property
    def cutoff(self) -> int:
        """The arrival from which on no member gets anything, or NEVER."""
        return NEVER if self._until is None else int(self._until.max(initial=0))

    def _limit(self, cutoffs: Mapping[int, int]) -> None:
        """Notes from which arrivals on members get nothing."""
        if self._until is None:
            self._until = np.full(len(self.audience.queries), NEVER)
        for place, query in enumerate(self.audience.queries):
            if query.qid in cutoffs:
                self._until[place] = min(cutoffs[query.qid], self._until[place])

    # ------------------------------------------------------------ charges

    def charge(self, arrival: int, share: Share, outputs: int, work: int) -> None:
        """Counts answers and steps of a match."""
        self._book.charge(arrival, share.key, [query.qid for query in share.withheld], outputs, work)
        if self._is_near():
            self._check()
            self._safe_outputs = max(self._safe_outputs, int(self._book.outputs * CHECKED_AGAIN_AFTER))
            self._safe_work = max(self._safe_work, int(self._work() * CHECKED_AGAIN_AFTER))

    @property
    def looking(self) -> Looking:
        """What was looked at to count pairs of documents with equal times."""
        return self._book.looking

    def tie(self, arrival: int, share: Share) -> None:
        """Counts a pair of documents with equal times."""
        self._book.tie(arrival, share.key, [(query.qid, query.begun) for query in share.withheld])

    def _is_near(self) -> bool:
        return self._book.outputs > self._safe_outputs or self._work() > self._safe_work

    def _work(self) -> int:
        work = self._book.work
        for book, times in self._others:
            work += times * book.work
        return work

    def exceeded(self) -> dict[Subscription, Excess]:
        """Returns the members that exceeded their quota, before the cutoffs that the account was made with."""
        if not (self._is_checked or self._is_near()):
            return {}
        self._check()
        return {query: self._excess[query.qid] for query in self.audience.queries if query.qid in self._excess}

    def _check(self) -> None:
        """Works out which members have exceeded their quota, and stops answering them."""
        self._is_checked = True
        charges, quota = Charges.of(self._block, self._books()), self._quota
        if charges.excess(quota, EVERYTHING, self._most_own()) is None:
            return
        less: dict[int, list[tuple[int, int, int]]] = {}
        for book, times in self._books():
            for (arrival, qid), (outputs, work) in book.less.items():
                less.setdefault(qid, []).append((arrival, times * outputs, times * work))
        found: dict[int, Excess] = {}
        alike: dict[Holder, list[int]] = {}
        for query, holder in zip(self.audience.queries, self._holders(), strict=True):
            if query.qid in less or query.qid in self._own or holder.until < NEVER:
                own = self._own.get(query.qid, Usage())
                excess = charges.excess(quota, holder, own, less.get(query.qid, ()))
                if excess is not None:
                    found[query.qid] = excess
            else:
                alike.setdefault(holder, []).append(query.qid)
        for holder, excess in over_quota(charges, quota, alike):
            found |= dict.fromkeys(alike[holder], excess)
        if found:
            self._excess |= found
            self._limit({qid: excess.arrival for qid, excess in found.items()})

    def _most_own(self) -> Usage:
        """Returns the most that is to be added for any member."""
        own = self._own.values()
        return Usage(max((u.outputs for u in own), default=0), max((u.work for u in own), default=0))

    def _holders(self) -> Iterator[Holder]:
        """Yields what decides which charges count for each member. Of qids it has only what makes a difference."""
        members = self.audience.members
        until = [NEVER] * len(members) if self._until is None else self._until.tolist()
        keys = {key for book, _ in self._books() for key in book.before}
        keys |= {key for book, _ in self._books() for _, key in book.step}
        first_qids = sorted({key.first_qid for key in keys})
        columns = (members.windows, members.sinces, members.qids, members.begun)
        for window, since, qid, begun, end in zip(*(c.tolist() for c in columns), until, strict=True):
            at = bisect_right(first_qids, qid)
            yield Holder(window, since, first_qids[at - 1] if at else -1, begun, end)

    # ------------------------------------------------------------ what is stored

    def spent(self, block: int) -> dict[ChargeKey, Usage]:
        """Returns what was charged in a block, with what was before the step, for the keys that the step charged."""
        found: dict[ChargeKey, list[int]] = {}
        for (arrival, key), (outputs, work) in self._book.step.items():
            if block_of(arrival) == block:
                known = found.get(key)
                if known is None:
                    before = self._book.before.get(key, Usage()) if block == self._block else Usage()
                    known = found[key] = [before.outputs, before.work]
                known[0] += outputs
                known[1] += work
        return {key: Usage(*used) for key, used in found.items()}

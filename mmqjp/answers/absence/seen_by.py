"""Who of those that get a match has seen a partner of it: both documents must be seen for one to count."""

from __future__ import annotations

from mmqjp.answers.absence.partners import Partners
from mmqjp.answers.joint import JointBinding
from mmqjp.answers.query_operator import NOBODY
from mmqjp.answers.quota import Steps
from mmqjp.answers.shared_account import Share, SharedAccount
from mmqjp.documents.record import Inputs, Record


class SeenBy:
    """Which of those who get a match have seen a partner of it."""

    def __init__(self, account: SharedAccount, share: Share, inputs: Inputs) -> None:
        self._audience = account.audience
        self._account, self._share, self._arrival = account, share, inputs.arrival
        latest = max(self._audience.latest_since, self._audience.latest_gap)
        self._all = None if latest < inputs.appeared and not share.first_qid else self._of_all()
        self._latest = latest if self._all is None else self._all[-1]
        self._least = int(self._audience.sinces[0]) if self._all is None else self._all[0]

    def _of_all(self) -> list[int]:
        """Returns, in ascending order, the documents after which those see everything who get the match."""
        gets = self._account.gets
        return sorted({q.sees_after for q in self._audience.queries if gets(self._share, q, self._arrival)}) or [-1]

    def partner_seen(self, partners: Partners, record: Record, binding: JointBinding, steps: Steps) -> int | None:
        """Returns the greatest document after which one sees a partner of a binding: less than NOBODY if nobody does,
        and None if all do."""
        if partners.first(record, binding, self._latest, steps) is not None:
            return None
        if self._least == self._latest or partners.first(record, binding, self._least, steps) is None:
            return NOBODY - 1
        if self._all is None:
            self._all = self._of_all()
        for after in reversed(self._all):
            if after < self._latest and partners.first(record, binding, after, steps) is not None:
                return after
        return NOBODY - 1

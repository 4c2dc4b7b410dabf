"""The stored counts of ties: for each form, by whom they count for. They are committed with the batches."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mmqjp.answers.charges import Book, ChargeKey
from mmqjp.queries.model import Subscription
from mmqjp.tables.ledger import Ledger

PREFIX = "ties "
"""What the keys of the settings begin with that hold the counts. The id of a form follows."""


@dataclass(frozen=True, slots=True)
class _Ties:
    """The ties of a form: `pairs` by key, and `less` of them by qid."""

    pairs: Counter[ChargeKey] = field(default_factory=Counter)
    less: Counter[int] = field(default_factory=Counter)

    @classmethod
    def read(cls, text: str) -> _Ties:
        pairs, less = json.loads(text)
        return cls(Counter({ChargeKey(*key): count for *key, count in pairs}), Counter(dict(less)))

    def with_those_of(self, book: Book) -> _Ties:
        return _Ties(self.pairs + book.ties, self.less + book.untied)

    def text(self) -> str:
        return json.dumps([[(*key, count) for key, count in self.pairs.items()], list(self.less.items())])

    def of(self, query: Subscription) -> int:
        """Returns how many count for a query: those since it was registered, or was resumed last."""
        found = sum(
            count
            for (width, since, first_qid, begun), count in self.pairs.items()
            if width <= query.width and since >= query.since and first_qid <= query.qid and begun >= query.begun
        )
        return max(found - self.less[query.qid], 0)


class StoredTies:
    """The counts of a store. The caller begins and commits batches."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: dict[str, _Ties] | None = None
        self._here: dict[str, _Ties] = {}
        """What was counted since the store was opened."""
        self._saved: dict[str, _Ties] = {}
        self._found: Mapping[str, Book] = {}

    def _all(self) -> dict[str, _Ties]:
        if self._known is None:
            self._known = {form: _Ties.read(text) for form, text in self._ledger.settings(PREFIX).items()}
        return self._known

    def save(self, found: Mapping[str, Book]) -> None:
        """Writes, within the batch, the counts of forms with those of a step."""
        self._found = found
        if found:
            known = self._all()
            self._saved = {form: known.get(form, _Ties()).with_those_of(book) for form, book in found.items()}
            self._ledger.save_settings({PREFIX + form: ties.text() for form, ties in self._saved.items()})

    def committed(self) -> None:
        """Adopts what `save` wrote: the batch was committed."""
        if self._saved:
            self._all().update(self._saved)
            self._here |= {
                form: self._here.get(form, _Ties()).with_those_of(book) for form, book in self._found.items()
            }
            self._saved, self._found = {}, {}

    def rolled_back(self) -> None:
        """Discards what `save` wrote: the batch was rolled back."""
        self._saved, self._found = {}, {}

    def of(self, queries: Iterable[Subscription], *, here: bool) -> dict[str, int]:
        """Returns how many pairs of documents with equal times each name has, the most first; only those that have
        some. With `here`, counts those since the store was opened."""
        found: Counter[str] = Counter()
        if known := self._here if here else self._all():
            for query in queries:
                ties = known.get(query.form_id)
                if ties is not None and (count := ties.of(query)):
                    found[query.name] += count
        return dict(found.most_common())

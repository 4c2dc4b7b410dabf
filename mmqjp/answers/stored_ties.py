"""The stored counts of ties: for each form, by whom they count for. They are committed with the batches."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from mmqjp.answers.charges import ChargeKey, TieCounts
from mmqjp.queries.model import Subscription
from mmqjp.tables.ledger import Ledger

PREFIX = "ties "
"""What the keys of the settings begin with that hold the counts. The id of a form follows."""

KEYS_KEPT = 8
"""Counts by more keys than this are looked through for those that count for nobody."""


@dataclass(frozen=True, slots=True)
class _Ties:
    """The ties of a form: `pairs` by key, and `less` of them by qid and `begun` of the query. So many were `looked`
    at. With `left_out`, there were more."""

    pairs: Counter[ChargeKey] = field(default_factory=Counter)
    less: Counter[tuple[int, int]] = field(default_factory=Counter)
    looked: int = 0
    left_out: bool = False

    @classmethod
    def read(cls, text: str) -> _Ties:
        pairs, less, looked, left_out = json.loads(text)
        withheld = Counter({(qid, begun): count for qid, begun, count in less})
        return cls(Counter({ChargeKey(*key): count for *key, count in pairs}), withheld, looked, left_out)

    def with_those_of(self, step: TieCounts) -> _Ties:
        left_out = self.left_out or step.left_out
        return _Ties(self.pairs + step.pairs, self.less + step.less, self.looked + step.looked, left_out)

    def text(self) -> str:
        pairs, less = ([(*key, count) for key, count in counts.items()] for counts in (self.pairs, self.less))
        return json.dumps([pairs, less, self.looked, self.left_out])

    def only_for(self, queries: Collection[Subscription]) -> _Ties:
        """Returns the ties without keys that count for none of the queries."""
        since, begun = min(query.since for query in queries), min(query.begun for query in queries)
        known = {(query.qid, query.begun) for query in queries}
        pairs = {key: count for key, count in self.pairs.items() if key.since >= since and key.begun >= begun}
        less = {key: count for key, count in self.less.items() if key in known}
        return replace(self, pairs=Counter(pairs), less=Counter(less))

    def of(self, query: Subscription) -> int:
        """Returns how many count for a query: those since it was registered, or was resumed last."""
        found = sum(
            count
            for (width, since, first_qid, begun), count in self.pairs.items()
            if width <= query.width and since >= query.since and first_qid <= query.qid and begun >= query.begun
        )
        return max(found - self.less[query.qid, query.begun], 0)


class StoredTies:
    """The counts of a store. The caller begins and commits batches."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: dict[str, _Ties] | None = None
        self._here: dict[str, _Ties] = {}
        """What was counted since the store was opened."""
        self._saved: dict[str, _Ties] = {}
        self._gone: set[str] = set()
        self._found: Mapping[str, TieCounts] = {}

    def _all(self) -> dict[str, _Ties]:
        if self._known is None:
            self._known = {form: _Ties.read(text) for form, text in self._ledger.settings(PREFIX).items() if text}
        return self._known

    def looked(self) -> dict[str, int]:
        """Returns how many pairs were looked at, by whom they were looked at for."""
        return {form: ties.looked for form, ties in self._all().items()}

    def save(self, found: Mapping[str, TieCounts], queries_of: Callable[[str], Collection[Subscription]]) -> None:
        """Writes, within the batch, the counts of forms with those of a step. `queries_of` returns the queries of a
        form. Counts of forms without queries are emptied."""
        self._found = found
        if found:
            known = self._all()
            new = {form: known.get(form, _Ties()).with_those_of(step) for form, step in found.items()}
            for form, ties in new.items():
                if len(ties.pairs) + len(ties.less) > KEYS_KEPT and (queries := queries_of(form)):
                    new[form] = ties.only_for(queries)
            self._saved = {form: ties for form, ties in new.items() if ties != known.get(form)}
            self._gone = {form for form, ties in known.items() if ties.pairs and not queries_of(form)}
            texts = {form: ties.text() for form, ties in self._saved.items()} | dict.fromkeys(self._gone, "")
            self._ledger.save_settings({PREFIX + form: text for form, text in texts.items()})

    def committed(self) -> None:
        """Adopts what `save` wrote: the batch was committed."""
        if self._found:
            self._all().update(self._saved)
            for form in self._gone:
                del self._all()[form]
            self._here |= {
                form: self._here.get(form, _Ties()).with_those_of(step) for form, step in self._found.items()
            }
            self._saved, self._found, self._gone = {}, {}, set()

    def rolled_back(self) -> None:
        """Discards what `save` wrote: the batch was rolled back."""
        self._saved, self._found, self._gone = {}, {}, set()

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

    def at_least(self, queries: Iterable[Subscription], *, here: bool) -> set[str]:
        """Returns the names whose pairs may be more than `of` says: some were not looked at."""
        known = self._here if here else self._all()
        return {query.name for query in queries if (ties := known.get(query.form_id)) is not None and ties.left_out}

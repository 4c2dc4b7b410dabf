"""Random live use of one query of stories, beside a model that folds all pairs again (tests/oracle/stories.py): it is
subscribed, with and without a backfill, paused, resumed and removed; documents come late; processes end, or are killed
as they write."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

from feeds.documents import Document
from tests.generate.documents import START, chance
from tests.live.cases import PLANS
from tests.live.run import Breaking, forget_process
from tests.oracle import stories as oracle
from tests.oracle.stories import Doc
from tests.support.faults import FaultySession, Injected

BEGINNING = -(1 << 62)


class Item(NamedTuple):
    doc: Doc
    keys: str
    feed: str
    value: str | None

    def document(self) -> Document:
        value = "" if self.value is None else f"<v>{self.value}</v>"
        keys = "".join(f"<k>{key}</k>" for key in self.keys)
        xml = f"<item>{keys}<feed_url>{self.feed}</feed_url>{value}</item>"
        return Document(self.doc.id, xml, self.doc.stream, self.doc.time)


Fold = Callable[[Sequence[tuple[Item, Item]], int], list[oracle.Change]]
"""What is told of pairs before a time."""


class StoryModel:
    """What a query of stories tells of documents in the order of their arrival. Pairs are at most `window` apart, and
    events wait as long as `settle`; `fold` is that of the query."""

    def __init__(self, window: int, settle: int, fold: Fold) -> None:
        self._window, self._settle, self._fold = window, settle, fold
        self._items: list[Item] = []
        self._pairs: dict[tuple[Item, Item], bool] = {}  # whether it came too late
        self._first: int | None = None  # of the items that the query sees
        self._begun = self.horizon = BEGINNING
        self.is_active = False
        self._before: Counter[oracle.Change] = Counter()

    @property
    def is_there(self) -> bool:
        return self._first is not None

    def told(self) -> Counter[oracle.Change]:
        """All that was told so far."""
        if not self.is_active:
            return self._before
        pairs = [pair for pair, late in self._pairs.items() if not late and _end(pair) >= self._begun]
        return self._before | Counter(self._fold(pairs, self.horizon))

    def process(self, items: Sequence[Item]) -> None:
        if self.is_active:  # a backfill leaves the horizon where it is; what had come by then counts from now on
            self.horizon = max(self.horizon, self._begun, self._reached())
        for item in items:
            self._pairs |= {pair: _end(pair) < self.horizon for pair in self._with(item)}
            self._items.append(item)
            if self.is_active:
                self.horizon = max(self.horizon, self._reached())

    def _with(self, item: Item) -> Iterator[tuple[Item, Item]]:
        for other in self._items[self._first :] if self._first is not None else ():
            if {*item.keys} & {*other.keys} and abs(item.doc.time - other.doc.time) <= self._window:
                yield item, other

    def _reached(self) -> int:
        return max((one.doc.time for one in self._items), default=BEGINNING + self._settle) - self._settle

    def _now(self) -> int:
        return max(self.horizon, self._begun if self.is_active and self.horizon > BEGINNING else self._reached())

    def subscribe(self, *, backfill: bool) -> None:
        """Pairs of an earlier query of the name are there still: events are seen by their time."""
        self._first, self._begun, self.is_active = (0 if backfill else len(self._items)), self._now(), True
        if backfill:
            self._pairs = {}
            self._begun = BEGINNING
            if self.horizon == BEGINNING:
                self.horizon = self._reached()
            some, self._items = self._items, []
            for item in some:
                self._pairs |= dict.fromkeys(self._with(item), False)
                self._items.append(item)

    def stop(self) -> None:
        self._before = self.told()
        self.is_active = False

    def resume(self) -> None:
        self._begun, self.is_active = self._now(), True

    def unsubscribe(self) -> None:
        self.stop()
        self._first = None


def _end(pair: tuple[Item, Item]) -> int:
    return max(one.doc.time for one in pair)


def _strike(state: Path, copy: Path | None) -> None:
    """Fails. With a `copy`, the process dies, and the copy is what it leaves."""
    if copy is not None:
        shutil.copytree(state, copy)
    raise Injected


def use(
    rng: Random, engine: str, place: Path, text: str, settle: int, items: Sequence[Item], model: StoryModel,
    compare: Callable[[FaultySession, Counter[oracle.Change]], None],
) -> None:  # fmt: skip
    """Uses the query `told` of a text in a store below `place`, and compares what it told with the model."""
    state, copies, waiting = place / "state", 0, list(items)

    def opened() -> FaultySession:
        forget_process()
        options = {"state": state, "plan": rng.choice(PLANS), "settle": settle}
        return FaultySession(engine, quiet=True, now=lambda: START, **options)  # type: ignore[arg-type]  # of kinds

    session = opened()
    try:
        while waiting:
            if chance(rng, 15):
                session.close()
                session = opened()
            if not model.is_there:
                if chance(rng, 70):
                    model.subscribe(backfill=(backfill := chance(rng, 50)))
                    session.subscribe(text, backfill=backfill)
            elif chance(rng, 12):
                session.unsubscribe("told")
                model.unsubscribe()
            elif chance(rng, 25 if model.is_active else 60):
                if model.is_active:
                    session.pause("told")
                    model.stop()
                else:
                    session.resume("told")
                    model.resume()
            count = rng.choice((1, 2, 2, 5, 9))
            some, waiting = waiting[:count], waiting[count:]
            documents = [one.document() for one in some]
            if chance(rng, 20):
                copies += 1
                copy = place / f"copy{copies}"
                strike = partial(_strike, state, copy if chance(rng, 60) else None)
                breaking = Breaking(session.store, rng.choice((1, 2, 3, 4, 6, 9)), chance(rng, 40), strike)
                with suppress(Injected), session.store.instead(**breaking.calls):
                    session.process(documents)
                if breaking.failed:
                    session.__exit__(Injected, None, None)
                    state = copy if copy.exists() else state
                    session = opened()
            session.process(documents)  # again, if a process was killed
            model.process(some)
            compare(session, model.told())
    finally:
        session.__exit__(Injected, None, None)

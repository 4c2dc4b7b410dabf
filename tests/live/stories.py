"""Random live use of one query of stories, beside a model that folds all pairs again (tests/oracle/stories.py): it is
subscribed, with and without a backfill, paused, resumed and removed, and exceeds its limits; documents come late;
processes end, or are killed as they write."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
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


Fold = Callable[[Sequence[tuple[Item, Item]], int, dict[int, int]], list[oracle.Change]]
"""Returns the changes of pairs before a time. Fills the dictionary with the number of members of open stories after
each time."""

BLOCK = 4
"""Number of arrivals, or of times with outputs, to which `max_outputs` applies."""


@dataclass(frozen=True)
class Limits:
    max_matches: int | None = None
    max_outputs: int | None = None
    max_partial: int | None = None

    def first_over(self, told: Sequence[oracle.Change], waiting: dict[int, int]) -> int | None:
        """The first time at which changes, or waiting members, exceed a limit."""
        counts, in_block = Counter(one.at for one in told), 0
        over = [time for time, count in waiting.items() if _is_over(count, self.max_partial)]
        for number, (time, count) in enumerate(sorted(counts.items())):
            in_block = count + (in_block if number % BLOCK else 0)
            if _is_over(count, self.max_matches) or _is_over(in_block, self.max_outputs):
                over.append(time)
        return min(over, default=None)


class StoryModel:
    """What a query of stories tells of documents in the order of their arrival. Pairs are at most `window` apart, and
    events wait as long as `settle`; `fold` is that of the query. The query of the pairs has limits by arrival, that of
    their stories by time, and each is paused for its own."""

    def __init__(self, window: int, settle: int, fold: Fold, limits: Limits) -> None:
        self._window, self.settle, self._fold, self.limits = window, settle, fold, limits
        self._items: list[Item] = []
        self._pairs: dict[tuple[Item, Item], bool] = {}  # whether it came too late
        self._seen: list[Item] | None = None  # by the query of the pairs
        self._in_block = 0  # pairs
        self._begun = self.horizon = BEGINNING
        self.is_active = self._joins = False
        self._before: Counter[oracle.Change] = Counter()

    @property
    def is_there(self) -> bool:
        return self._seen is not None

    @property
    def paused(self) -> set[str]:
        return {
            name for name, on in (("told", self.is_active), ("told.pairs", self._joins)) if self.is_there and not on
        }

    def told(self) -> Counter[oracle.Change]:
        """All that was told so far."""
        return self._before | Counter(self._found()[0] if self.is_active else ())

    def _found(self) -> tuple[list[oracle.Change], bool]:
        """What was told since the query began, and whether it exceeded a limit."""
        pairs = [pair for pair, late in self._pairs.items() if not late and _end(pair) >= self._begun]
        waiting: dict[int, int] = {}
        found = self._fold(pairs, self.horizon, waiting)
        end = self.limits.first_over(found, waiting)
        return (found, False) if end is None else ([one for one in found if one.at < end], True)

    def process(self, items: Sequence[Item]) -> None:
        # A backfill leaves the horizon where it is; what had come by then counts from now on.
        self._advance(self._begun)
        for item in items:
            self._take(item, self.horizon)
            self._advance(BEGINNING)

    def _advance(self, least: int) -> None:
        if self.is_active:
            self.horizon = max(self.horizon, least, self._reached())
            self._stop_if_over()

    def _stop_if_over(self) -> None:
        if self.is_active and self._found()[1]:
            self.stop()

    def _take(self, item: Item, horizon: int) -> None:
        """Joins an arriving document with those before it, unless these are too many pairs."""
        if len(self._items) % BLOCK == 0:
            self._in_block = 0
        self._items.append(item)
        if self._seen is None or not self._joins:
            return
        pairs = list(self._with(item, self._seen))
        self._in_block += len(pairs)
        self._joins = not (
            _is_over(len(pairs), self.limits.max_matches) or _is_over(self._in_block, self.limits.max_outputs)
        )
        if self._joins:
            self._pairs |= {pair: _end(pair) < horizon for pair in pairs}
            self._seen.append(item)

    def _with(self, item: Item, others: Iterable[Item]) -> Iterator[tuple[Item, Item]]:
        for other in others:
            if {*item.keys} & {*other.keys} and abs(item.doc.time - other.doc.time) <= self._window:
                yield item, other

    def _reached(self) -> int:
        return max((one.doc.time for one in self._items), default=BEGINNING + self.settle) - self.settle

    def _now(self) -> int:
        return max(self.horizon, self._begun if self.is_active and self.horizon > BEGINNING else self._reached())

    def subscribe(self, *, backfill: bool) -> None:
        """Pairs of an earlier query of the name are there still: events are seen by their time."""
        self._seen, self._in_block, self._begun, self.is_active, self._joins = [], 0, self._now(), True, True
        if backfill:
            self._pairs = dict.fromkeys(self._pairs, False)
            self._begun = BEGINNING
            if self.horizon == BEGINNING:
                self.horizon = self._reached()
            some, self._items = self._items, []
            for item in some:
                self._take(item, BEGINNING)
            self._stop_if_over()

    def stop(self) -> None:
        self._before = self.told()
        self.is_active = False

    def resume(self) -> None:
        """Resumes what is paused of the two queries."""
        if not self.is_active:
            self._begun, self.is_active = self._now(), True
        if not self._joins:
            self._joins, self._in_block = True, 0

    def unsubscribe(self) -> None:
        self.stop()
        self._seen = None


def _is_over(count: int, most: int | None) -> bool:
    return most is not None and count > most


def _end(pair: tuple[Item, Item]) -> int:
    return max(one.doc.time for one in pair)


def _strike(state: Path, copy: Path | None) -> None:
    """Fails. With a `copy`, the process dies, and the copy is what it leaves."""
    if copy is not None:
        shutil.copytree(state, copy)
    raise Injected


def use(
    rng: Random, engine: str, place: Path, text: str, items: Sequence[Item], model: StoryModel,
    compare: Callable[[FaultySession, StoryModel], None],
) -> None:  # fmt: skip
    """Uses the query `told` of a text in a store below `place`, and compares what it told with the model."""
    state, copies, waiting = place / "state", 0, list(items)

    def opened() -> FaultySession:
        forget_process()
        options = {"state": state, "plan": rng.choice(PLANS), "settle": model.settle, **asdict(model.limits)}
        return FaultySession(engine, quiet=True, now=lambda: START, **options)

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
            elif chance(rng, 60 if model.paused else 25):
                if model.is_active and not (model.paused and chance(rng, 50)):
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
            compare(session, model)
    finally:
        session.__exit__(Injected, None, None)

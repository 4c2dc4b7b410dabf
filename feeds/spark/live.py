"""`spark.read.format("mmqjp_feeds")` and `spark.readStream`: live feeds, fetched by the driver when it is time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from feeds.bad_input import SourceError
from feeds.entries import EntryForm
from feeds.feed_files import read_feed_file
from feeds.fetch.clock import DAY, SECOND
from feeds.fetch.drop_archive import remove_read
from feeds.fetch.gates import Courtesy
from feeds.fetch.job import Job
from feeds.fetch.lists import read_feed_lists
from feeds.fetch.schedule import Pace
from feeds.fetch.visit import Settings, own_agent
from feeds.history import History
from feeds.kinds import FEED_SUFFIX
from feeds.sightings import Item
from feeds.spark.document_rows import COLUMNS, entry_form, local_path, row_batches
from feeds.spark.inbox import Inbox, from_bytes
from feeds.tail import Tail
from feeds.times import now_us
from feeds.unreadable import or_reject

_T = TypeVar("_T")

NAME = "mmqjp_feeds"
DROPS = "drops"
"""The folder of the state that feeds are fetched into, and its name as a source."""

KEPT = DAY
"""How long a version stays after a stream has read it. The newest of each feed stays longer."""

KNOWN = 30 * DAY
"""How long an entry is known after its feed has dropped it."""


@dataclass(frozen=True)
class _Live:
    """What is fetched, into which state, and the form in which entries are read."""

    job: Job
    state: Path
    form: EntryForm

    @classmethod
    def of(cls, options: Mapping[str, str]) -> _Live:
        lists = re.split(r"[,\s]+", options.get("lists", "").strip())
        form = entry_form(options.get("feeds")) or "item"
        if not any(lists):
            raise SourceError(NAME, "no feeds", 'name OPML files or addresses: .option("lists", "feeds.opml")')
        if not options.get("state"):
            raise SourceError(NAME, "no state", 'name a directory: .option("state", "state/")')
        state = local_path(options["state"])
        feeds, complaints = read_feed_lists(lists)
        if complaints:
            raise SourceError(NAME, complaints[0].removesuffix("; it is left out"))
        agent = options.get("userAgent") or own_agent()
        pace = Pace(_seconds(options, "interval", Pace().interval))
        settings = Settings(agent, pace=pace, robots=_truth(options, "robots"))
        courtesy = replace(Courtesy(), spacing=_seconds(options, "spacing", Courtesy().spacing))
        job = Job(feeds, state / DROPS, settings, courtesy, _truth(options, "allowPrivate"))
        return cls(job, state, form)

    def fetch(self) -> None:
        """Fetches what is due."""
        self.state.mkdir(0o700, parents=True, exist_ok=True)
        asyncio.run(self.job.run())


def _seconds(options: Mapping[str, str], key: str, otherwise: int) -> int:
    """An option in seconds, as microseconds."""
    text = options.get(key)
    if text is None:
        return otherwise
    if not re.fullmatch(r"\d{1,9}(\.\d{1,6})?", text):
        raise SourceError(f"{key} {text}", "no number of seconds", "write 3600, or 0.5")
    return int(float(text) * SECOND)


def _truth(options: Mapping[str, str], key: str) -> bool:
    text = options.get(key, "false").lower()
    if text not in ("true", "false"):
        raise SourceError(f"{key} {text}", "neither true nor false")
    return text == "true"


@dataclass
class _Versions(InputPartition):
    """The versions of a feed, in order, below a directory."""

    directory: str
    names: list[str]


class _Reader(DataSourceReader):
    """Fetches what is due, and reads all versions in the state, with a partition for each feed."""

    def __init__(self, live: _Live) -> None:
        self._live = live

    def partitions(self) -> list[InputPartition]:
        self._live.fetch()
        folders = sorted(path for path in self._live.job.out.iterdir() if path.is_dir())
        found = [sorted(f"{folder.name}/{path.name}" for path in folder.glob(f"*{FEED_SUFFIX}")) for folder in folders]
        return [_Versions(str(self._live.job.out), names) for names in found if names]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, _Versions):  # where there is none, Spark makes one of its own
            yield from row_batches(History().settle(self._items(partition)))

    def _items(self, partition: _Versions) -> Iterator[Item]:
        for name in partition.names:
            yield from or_reject(read_feed_file(Path(partition.directory, name), name, self._live.form), name)


@dataclass
class _Segment(InputPartition):
    data: bytes


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An offset is the number of the last segment of the inbox. The driver reads entries, because it has their history;
    executors get rows."""

    def __init__(self, live: _Live) -> None:
        self._live = live
        self._target: int | None = None

    def initialOffset(self) -> dict[str, int]:  # Spark's name, as those that follow
        return {"segment": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._with_inbox(self._taken)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        newest = self._with_inbox(self._taken) if self._target is None else self._target
        return {"segment": max(newest, start["segment"])}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        first, last = start["segment"], end["segment"]
        found = self._with_inbox(lambda inbox: inbox.segments(first, last))
        if len(found) < last - first:
            cause = f"of the segments {first + 1} to {last}, which the checkpoint has, {len(found)} are there"
            raise SourceError(str(self._live.state), cause, "a state goes with one query and its checkpoint")
        return [_Segment(data) for data in found]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, _Segment):
            yield from from_bytes(partition.data)

    def commit(self, end: dict[str, int]) -> None:
        self._with_inbox(lambda inbox: inbox.drop(end["segment"]))

    def _taken(self, inbox: Inbox) -> int:
        """Fetches what is due, reads it, and removes what was read long ago. Returns the number of the newest
        segment."""
        self._live.fetch()
        directory = self._live.job.out
        tail = Tail(directory, feeds=self._live.form, name=DROPS)
        inbox.take(tail, History(keep=KNOWN))
        remove_read(directory, inbox.read_files(DROPS), now_us() - KEPT)
        inbox.forget_files(DROPS, tail.names())
        return inbox.newest()

    def _with_inbox(self, use: Callable[[Inbox], _T]) -> _T:
        self._live.state.mkdir(0o700, parents=True, exist_ok=True)
        with closing(Inbox(self._live.state)) as inbox:
            return use(inbox)


class FeedSource(DataSource):
    """Options: `lists` (OPML files, text files or addresses, separated by commas), `state` (a directory), `feeds`
    (`item`, the default, or `raw`), `interval` and `spacing` in seconds, `robots`, `allowPrivate`, `userAgent`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return COLUMNS

    def reader(self, schema: object) -> _Reader:
        return _Reader(_Live.of(self.options))

    def streamReader(self, schema: object) -> _StreamReader:
        return _StreamReader(_Live.of(self.options))

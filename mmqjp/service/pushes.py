"""Documents that clients push to a running service. A request is a command in a spool of its own, with its body; the
service reads the bodies and commits the documents of all waiting requests together, so that many small ones cost
little. A request is answered after the commit; one that is sent again finds its documents by their ids, and its dead
letters by a digest of the request. `PushClient` is the other end: it submits requests and waits for their replies."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any, Literal

from common.errors import InputError, InvalidValue, OperationalError
from common.tools import LruCache
from feeds.documents import (
    DEFAULT_STREAM,
    Document,
    Now,
    Reject,
    SourceItem,
    now_us,
    parse_time,
    refuse_own_stream,
    unix_time_refusal,
)
from feeds.feed import read_entries
from feeds.fetch.http import DecodeError, decode
from feeds.history import EndOfFetch, InputItem, Sighting
from feeds.items import Origin
from feeds.readers import read_json, read_line
from mmqjp.documents.admission import BATCH_BYTES, BATCH_DOCUMENTS
from mmqjp.engine import Session
from mmqjp.service.spool import PUSHES, Command, CommandResult, Spool
from mmqjp.tables.schema import DUPLICATE

PUSH = "push"

XML, LINES, JSON, FEED = "xml", "lines", "json", "feed"

KINDS = {
    "application/xml": XML, "text/xml": XML, "application/json": JSON, "application/x-ndjson": LINES,
    "application/jsonl": LINES,
    "application/atom+xml": FEED, "application/rss+xml": FEED, "application/rdf+xml": FEED,
    "application/feed+json": FEED,
}  # fmt: skip
"""How a body is read, by its media type."""

MOST_BYTES, MOST_DOCUMENTS = BATCH_BYTES, BATCH_DOCUMENTS
"""Maximum size of a request: bytes of its body, also when decoded, and lines of it."""

SENT_AGAIN, MOST_REQUESTS, MOST_REMEMBERED = 3600 * 1_000_000, 1_000, 100_000
"""Microseconds for which the dead letters of a request are remembered, and maximum number of requests that are read at
the start and of dead letters."""

DEAD = "push-dead "  # prefix of the ids of commands whose answers are the dead letters of requests

PushOutcome = Literal["accepted", "duplicate", "dead-letter"]


@dataclass(frozen=True, slots=True)
class PushedDocument:
    """What became of a document, with the reason if it is a dead letter."""

    id: str
    stream: str
    outcome: PushOutcome
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class PushReport:
    """What became of the documents of a request, in its order."""

    accepted: int
    duplicates: int
    dead_letters: int
    documents: Sequence[PushedDocument]


def _report(documents: Sequence[PushedDocument]) -> dict[str, Any]:
    counts = Counter(document.outcome for document in documents)
    shown = [
        {"id": one.id, "stream": one.stream, "outcome": one.outcome}
        | ({} if one.reason is None else {"reason": one.reason})
        for one in documents
    ]
    totals = {"accepted": counts["accepted"], "duplicates": counts["duplicate"], "dead_letters": counts["dead-letter"]}
    return {**totals, "documents": shown}


# ------------------------------------------------------------ in the service


def read_push(command: Command, now: Now = now_us) -> Iterator[InputItem]:
    """The documents of a request. Raises InvalidValue if its arguments cannot be used."""
    given, body = command.arguments, command.body
    digest = sha256(body).hexdigest()[:32]
    match given["kind"]:
        case "lines":
            for number, line in enumerate(body.split(b"\n"), 1):
                if line.strip():
                    yield read_line(line, f"pushed {digest}, line {number}", now)
        case "feed":
            origin = Origin(f"pushed {digest}", now(), given.get("feed", ""), content_type=given["type"])
            # What is pushed need not be all that the feed has, so its end says nothing.
            yield from (item for item in read_entries(body, origin) if not isinstance(item, EndOfFetch))
        case kind:
            id, stream = given.get("id") or f"sha256:{digest}", given.get("stream") or DEFAULT_STREAM
            refuse_own_stream(stream)
            time = _time(given.get("time"))
            parse_time(0 if time is None else time)  # what is wrong with it is not a fault of the document
            try:
                if kind == JSON:
                    yield read_json(body, id, stream, time, now, typed="types" in given)
                else:
                    xml = body.decode(given["charset"]) if given.get("charset") else body
                    yield Document(id, xml, stream, time, now=now)
            except ValueError as error:
                yield Reject(id, stream, None, str(error), body)


def _time(text: str | None) -> str | int | None:
    """A time in an address or header: digits are microseconds. Raises InvalidValue for Unix seconds."""
    if not text or not text.isdecimal() or len(text) > 20:
        return text or None
    if (refusal := unix_time_refusal(time := int(text))) is not None:
        raise InvalidValue(refusal)
    return time


def _digest(command: Command) -> str:
    said = json.dumps(dict(command.arguments), sort_keys=True).encode()
    return blake2b(command.body, key=blake2b(said).digest(), digest_size=16).hexdigest()


@dataclass(slots=True)
class _Request:
    """A request that is being processed: `places` has, for each of its items, its index in the batch; None if the
    history knows the entry, or if the same request came before and `known` has why the item is a dead letter."""

    command: Command
    digest: str
    items: list[InputItem]
    places: list[int | None]
    known: Mapping[int, str]
    dead: dict[int, str] = field(default_factory=dict)

    def outcome(self, place: int, fates: Sequence[str | None]) -> PushedDocument:
        item, at = self.items[place], self.places[place]
        fate = self.known.get(place, DUPLICATE) if at is None else fates[at]
        stream = DEFAULT_STREAM if not isinstance(item, Document | Reject) else item.stream
        id = "" if not isinstance(item, Document | Reject | Sighting) else item.id
        if fate is None:
            return PushedDocument(id, stream, "accepted")
        if fate == DUPLICATE:
            return PushedDocument(id, stream, "duplicate")
        self.dead[place] = fate
        return PushedDocument(id, stream, "dead-letter", fate)


class PushBatch:
    """The documents of requests that are committed together. `answers` must be committed with them, then `reply`
    called."""

    def __init__(self, requests: Sequence[_Request], items: list[SourceItem]) -> None:
        self._requests, self.items = requests, items
        self._results: list[dict[str, Any]] = []

    def answers(self, fates: Sequence[str | None]) -> Mapping[str, str]:
        """Returns what to remember of requests with dead letters, given what became of the items."""
        self._results = [
            _report([request.outcome(place, fates) for place in range(len(request.items))])
            for request in self._requests
        ]
        return {DEAD + one.digest: json.dumps(one.dead) for one in self._requests if one.dead != one.known}

    def results(self) -> Iterator[tuple[_Request, dict[str, Any]]]:
        return zip(self._requests, self._results, strict=True)


Judge = Callable[[InputItem], SourceItem | None]


class PushQueue:
    """The requests that wait in a spool, for the thread that holds the store."""

    def __init__(self, spool: Spool, engine: Session, now: Now = now_us) -> None:
        self._spool, self._now = spool, now
        self._dead = LruCache[str, tuple[int, Mapping[int, str]]](MOST_REMEMBERED, lambda noted: len(noted[1]))
        sql = f"""SELECT id, answer, noted_at FROM commands WHERE id LIKE '{DEAD}%' AND noted_at > {now() - SENT_AGAIN}
ORDER BY noted_at DESC LIMIT {MOST_REQUESTS}"""
        for row in reversed(engine.sql(sql, trusted=True).to_pylist()):
            dead = {int(place): reason for place, reason in json.loads(row["answer"]).items()}
            self._dead.put(row["id"].removeprefix(DEAD), (row["noted_at"], dead))

    def take(self, judge: Judge, most: int, most_bytes: int) -> PushBatch | None:
        """Returns the documents of the oldest requests: at most `most`, fewer if they exceed `most_bytes`, but those of
        one request in any case; None if there is none. Replies to requests that cannot be read."""
        requests: dict[str, _Request] = {}
        items: list[SourceItem] = []
        size = 0
        for command in self._spool.read():
            digest = _digest(command)
            is_full = size + len(command.body) > most_bytes or len(items) >= most
            if requests and (is_full or digest in requests):  # the second time it finds what became of the first
                break
            size += len(command.body)
            try:
                found = list(read_push(command, self._now))
            except InputError as error:
                self._spool.answer(command, CommandResult(error=str(error)))
                continue
            requests[digest] = self._placed(command, digest, found, judge, items)
        return PushBatch(list(requests.values()), items) if requests else None

    def reply(self, batch: PushBatch) -> None:
        """Call after the commit."""
        for request, result in batch.results():
            if request.dead != request.known:
                self._dead.put(request.digest, (self._now(), request.dead))
            self._spool.answer(request.command, CommandResult(result))

    def _placed(
        self, command: Command, digest: str, found: list[InputItem], judge: Judge, items: list[SourceItem]
    ) -> _Request:
        noted_at, dead = self._dead.get(digest) or (0, {})
        known = dead if noted_at > self._now() - SENT_AGAIN else {}
        places: list[int | None] = []
        for place, item in enumerate(found):
            settled = None if place in known else judge(item)
            places.append(None if settled is None else len(items))
            if settled is not None:
                items.append(settled)
        return _Request(command, digest, found, places, known)


# ------------------------------------------------------------ in the process that serves clients

MOST_WAITING, MOST_WAITING_BYTES = 64, 64 << 20
"""Maximum number and total size in bytes of requests that wait for their replies."""

MOST_SPOOLED, MOST_SPOOLED_BYTES = 256, 128 << 20
"""The same of requests in the spool, which has those, too, whose clients do not wait any more."""

PUSH_RATE, PUSH_BURST = 200.0, 400.0
"""Maximum number of requests a second of one client in the long run, and at once."""

MOST_CLIENTS = 1_000  # maximum number of clients whose requests are counted

REPLY_SECONDS, SOONEST, SHARE = 30.0, 0.002, 10
"""Seconds that a client waits for its reply; the first look for it, and the share of its wait until the next one."""

THREADS = 2  # number of threads that decode bodies and use the spool


class PushRefused(OperationalError, RuntimeError):
    """A request is not taken now: `status` is that of HTTP, `wait` the seconds until it may be."""

    def __init__(self, cause: str, status: int = 503, wait: int = 1) -> None:
        super().__init__(cause, status, wait)
        self.status, self.cause, self.wait = status, cause, wait

    def __str__(self) -> str:
        return self.cause


class PushClient:
    """Submits requests and waits for their replies. For one event loop, which decodes and reads nothing itself."""

    def __init__(self, state: Path, is_served: Callable[[], bool]) -> None:
        """`is_served` says whether a process holds the store."""
        self._spool, self._is_served = Spool(state, commands=PUSHES), is_served
        self._threads = ThreadPoolExecutor(THREADS, "mmqjp pushes")
        self._waiting = self._bytes = 0
        self._rates = LruCache[str, tuple[float, float]](MOST_CLIENTS)

    @contextmanager
    def admitted(self, client: str, size: int) -> Iterator[None]:
        """For a request of about `size` bytes, before its body is read. Raises PushRefused."""
        now = asyncio.get_running_loop().time()
        left, since = self._rates.get(client) or (PUSH_BURST, now)
        left = min(left + (now - since) * PUSH_RATE, PUSH_BURST) - 1
        if left < 0:
            raise PushRefused(f"a client may send {PUSH_RATE:.0f} requests a second: put documents together", 429)
        self._rates.put(client, (left, now))
        if self._waiting >= MOST_WAITING or (self._waiting and self._bytes + size > MOST_WAITING_BYTES):
            raise PushRefused("too many documents wait to be processed: send them again in a moment")
        self._waiting, self._bytes = self._waiting + 1, self._bytes + size
        try:
            yield
        finally:
            self._waiting, self._bytes = self._waiting - 1, self._bytes - size

    async def push(self, body: bytes, coding: str, arguments: Mapping[str, Any]) -> bytes:
        """Returns the report on a body's documents as JSON. Raises PushRefused, and InvalidValue for a request that
        cannot be used."""
        loop = asyncio.get_running_loop()
        command = await loop.run_in_executor(self._threads, self._submit, body, coding, arguments)
        begun = loop.time()
        while (waited := loop.time() - begun) < REPLY_SECONDS:
            await asyncio.sleep(max(SOONEST, waited / SHARE))
            if self._spool.has_result(command):
                return await loop.run_in_executor(self._threads, self._reply, command)
        cause = f"the service has not answered within {REPLY_SECONDS:g} s"
        raise PushRefused(f"{cause}: what was sent will be processed; send it again for the reply", wait=5)

    def _submit(self, body: bytes, coding: str, arguments: Mapping[str, Any]) -> Command:
        try:
            body = decode(body, coding, MOST_BYTES) if coding else body
        except DecodeError as error:
            raise InvalidValue(str(error)) from None
        if len(body) > MOST_BYTES:
            raise PushRefused(f"a request has at most {MOST_BYTES:,} bytes, also when it is decoded", 413)
        if arguments["kind"] == LINES and body.count(b"\n") > MOST_DOCUMENTS:
            raise PushRefused(f"a request has at most {MOST_DOCUMENTS:,} lines", 413)
        if not body.strip():
            raise InvalidValue("the request has no body")
        count, size = self._spool.size()
        if count >= MOST_SPOOLED or size > MOST_SPOOLED_BYTES:
            raise PushRefused("too many documents wait to be processed: send them again later", wait=5)
        if not self._is_served():
            raise PushRefused("no service runs over the store: start mmqjp serve or stream", wait=5)
        return self._spool.submit(PUSH, arguments, body)

    def _reply(self, command: Command) -> bytes:
        result = self._spool.take_result(command)
        if result is None or result.error is not None:
            raise InvalidValue("the reply is gone: send it again" if result is None else str(result.error))
        return json.dumps(result.result, ensure_ascii=False).encode("utf-8", "backslashreplace")

"""Visitors of a page: so many requests a second, whatever the server does. It notes how long each answer takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import Event, Thread
from types import TracebackType

import httpx

WAIT = 30.0
"""Seconds after which a request has failed."""

CONNECTIONS = 20


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for: the name of the kind of page, and the path."""

    page: str
    path: str


@dataclass(slots=True)
class Times:
    """The seconds of each answer by kind of page, how many were put off (503), and what went wrong."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    put_off: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


class Visitors:
    """A context manager: inside it, requests are sent at a constant rate. A thread sends them."""

    def __init__(self, url: str, token: str, requests: Iterator[Request], rate: float, times: Times) -> None:
        self._url, self._requests, self._rate, self._times = url, requests, rate, times
        self._headers = {"Authorization": f"Bearer {token}"}
        self._stop = Event()
        self._thread = Thread(target=lambda: asyncio.run(self._work()), name="visitors", daemon=True)

    def __enter__(self) -> Visitors:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    async def _work(self) -> None:
        """Puts each request into a queue when it is due. So many tasks as there are connections send them: were all
        sent at once, those that wait would cost the client's pool time, and so the server its processor."""
        limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
        waiting = asyncio.Queue[tuple[Request, float]]()
        async with (
            httpx.AsyncClient(base_url=self._url, headers=self._headers, limits=limits, timeout=WAIT) as client,
            asyncio.TaskGroup() as group,  # if one fails, all end
        ):
            sending = [group.create_task(self._send(client, waiting)) for _ in range(CONNECTIONS)]
            due = time.perf_counter()
            while not self._stop.is_set():
                waiting.put_nowait((next(self._requests), due))
                due += 1 / self._rate
                await asyncio.sleep(max(due - time.perf_counter(), 0))
            await waiting.join()
            for task in sending:
                task.cancel()

    async def _send(self, client: httpx.AsyncClient, waiting: asyncio.Queue[tuple[Request, float]]) -> None:
        while True:
            await self._ask(client, *await waiting.get())
            waiting.task_done()

    async def _ask(self, client: httpx.AsyncClient, request: Request, due: float) -> None:
        """Sends a request. Its time begins when it was due: that it had to wait for others counts."""
        try:
            answer = await client.get(request.path)
        except httpx.HTTPError as error:
            self._times.wrong.append(f"{request.path}: {error!r}")
            return
        self._times.seconds.setdefault(request.page, []).append(time.perf_counter() - due)
        if answer.status_code == 503:
            self._times.put_off[request.page] = self._times.put_off.get(request.page, 0) + 1
        elif answer.status_code != 200:
            self._times.wrong.append(f"{request.path}: {answer.status_code} {answer.text[:200]}")


def get(url: str, token: str) -> Callable[[str], httpx.Response]:
    """Returns a function that gets a path as visitors do. It raises httpx.HTTPError for all but success."""
    client = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=WAIT)

    def ask(path: str) -> httpx.Response:
        return client.get(path).raise_for_status()

    return ask

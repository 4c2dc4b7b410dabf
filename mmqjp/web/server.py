"""Runs an app under uvicorn in a thread beside the service."""

from __future__ import annotations

import asyncio
import socket
from threading import Event, Thread
from types import TracebackType
from typing import Any, Self

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from mmqjp.service.log import Log

MOST_CONNECTIONS = 500
"""The most connections at a time. Others are answered with 503."""

HEAD_SECONDS = 20.0
"""The longest time that the head of a request may take to come."""

IDLE_SECONDS = 15
"""A connection without a request is closed after so many seconds."""

STOP_SECONDS = 3
"""So long the server waits for its connections when it stops, in seconds."""


class PatientProtocol(H11Protocol):
    """Closes a connection whose next request does not come: uvicorn itself waits for the rest of a head for ever."""

    _head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begins to wait for a head."""
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Goes on waiting if the head is not whole yet."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            if self._head is None:
                self._wait_for_head()
        elif self._head is not None:
            self._head.cancel()
            self._head = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits no longer."""
        if self._head is not None:
            self._head.cancel()
            self._head = None
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        self._head = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _give_up(self) -> None:
        self._head = None
        if not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()


class Server:
    """A context manager: inside it, an app is served over a socket, in a thread of its own. `stop` is set if that
    fails."""

    def __init__(self, app: ASGIApp, listening: socket.socket, log: Log, stop: Event) -> None:
        config = uvicorn.Config(
            app,
            http=PatientProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
        self._server, self._socket, self._log, self._stop = uvicorn.Server(config), listening, log, stop
        self._thread = Thread(target=self._run, name="mmqjp serve", daemon=True)
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join()
        if self._failure is not None and error is None:
            raise self._failure

    def _run(self) -> None:
        try:
            # `Server.run` would take over the signals, which are the service's.
            asyncio.run(self._server.serve([self._socket]))
        except BaseException as error:
            self._failure = error
            self._log.event("serve-failed", error=error)
        finally:
            self._stop.set()

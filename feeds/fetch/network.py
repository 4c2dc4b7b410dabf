"""Connects to allowed addresses only: a name is resolved once, the address is checked, and that address is connected
to.

This is below TLS and HTTP, so every request passes it, redirected ones too, and a name that resolves differently the
next time (DNS rebinding) gains nothing. TLS and the header Host still use the name.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import certifi
import httpcore
import httpx

from feeds.fetch.addresses import is_public
from feeds.fetch.failures import FetchError

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""From a host and a port to the host's addresses. Raises OSError if it has none."""


async def resolve(host: str, port: int) -> list[str]:
    """The addresses that the system's resolver knows."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Opens connections to public addresses, and to private ones only if they are allowed."""

    def __init__(self, allow_private: bool, resolve: Resolve = resolve) -> None:
        self._allow_private = allow_private
        self._resolve = resolve
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Raises FetchError if no address of the host is allowed, and httpcore's errors if none can be reached."""
        try:
            async with asyncio.timeout(timeout):
                addresses = await self._resolve(host, port)
        except TimeoutError:
            raise httpcore.ConnectTimeout(f"{host} was not resolved in {timeout:g} s") from None
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(
                f"{host} cannot be resolved: {getattr(error, 'strerror', '') or error}"
            ) from None
        allowed = [address for address in addresses if self._allow_private or is_public(address)]
        if not allowed:
            shown = ", ".join(addresses) or "nothing"
            raise FetchError(f"{host} leads to {shown}, and only public addresses are fetched from")
        trouble: Exception | None = None
        for address in allowed:
            try:
                return await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                trouble = error
        assert trouble is not None
        raise trouble

    async def sleep(self, seconds: float) -> None:
        await self._network.sleep(seconds)


class _Body(httpx.AsyncByteStream):
    def __init__(self, response: httpcore.Response) -> None:
        self._response = response

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._response.aiter_stream().__aiter__()

    async def aclose(self) -> None:
        await self._response.aclose()


class GuardedTransport(httpx.AsyncBaseTransport):
    """httpx over a GuardedBackend: no proxies, and errors are httpcore's or a FetchError."""

    def __init__(self, backend: GuardedBackend, tls: ssl.SSLContext, connections: int) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=tls, max_connections=connections, keepalive_expiry=5.0, network_backend=backend
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        response = await self._pool.handle_async_request(
            httpcore.Request(
                request.method,
                httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                headers=request.headers.raw,
                content=request.stream,
                extensions=request.extensions,
            )
        )
        return httpx.Response(
            response.status, headers=response.headers, stream=_Body(response), extensions=response.extensions
        )

    async def aclose(self) -> None:
        await self._pool.aclose()


def open_client(allow_private: bool, connections: int, resolve: Resolve = resolve) -> httpx.AsyncClient:
    """A client whose every connection is guarded. It follows no redirects, takes no proxy and keeps no cookies."""
    tls = ssl.create_default_context(cafile=certifi.where())
    backend = GuardedBackend(allow_private, resolve)
    no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
    transport = GuardedTransport(backend, tls, connections)
    return httpx.AsyncClient(transport=transport, trust_env=False, cookies=no_cookies)

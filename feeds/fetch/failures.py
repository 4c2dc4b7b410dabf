"""Why a feed was not fetched. Each concerns that feed alone: the others are fetched all the same."""

from __future__ import annotations

from common.errors import OperationalError


class FetchError(OperationalError, RuntimeError):
    """A fetch failed; the message is the cause. `status` is the answer's, 0 where there was none.

    `not_before` is the earliest time (microseconds) that the server lets us come again, where it says so. It is no
    OSError: those of a connection are caught around it, and become one.
    """

    def __init__(self, cause: str, status: int = 0, not_before: int | None = None) -> None:
        super().__init__(cause, status, not_before)
        self.cause = cause
        self.status = status
        self.not_before = not_before

    def __str__(self) -> str:
        return self.cause


class Gone(FetchError):
    """The server says that the feed will never come back."""


class HostPaused(Exception):
    """The host has asked to be left alone until a time (microseconds): nothing was asked, and nothing failed.

    It never leaves `feeds.fetch`: a visit that meets it is put off.
    """

    def __init__(self, until: int) -> None:
        super().__init__(until)
        self.until = until


class FetchedAlready(Exception):
    """What a feed leads to, `address`, is fetched as another feed, `url`: nothing more was asked, and nothing failed.

    It never leaves `feeds.fetch`: a visit that meets it is put off.
    """

    def __init__(self, url: str, address: str) -> None:
        super().__init__(url, address)
        self.url = url
        self.address = address

    def __str__(self) -> str:
        return f"fetched as {self.url}"

"""Why a feed could not be fetched: errors of that feed's own, from which the others do not suffer."""

from __future__ import annotations


class FetchError(Exception):
    """A fetch failed; the message is the cause. `status` is the answer's, 0 where there was none.

    `not_before` is the earliest time (microseconds) that the server lets us come again, where it says so.
    """

    def __init__(self, cause: str, status: int = 0, not_before: int | None = None) -> None:
        super().__init__(cause)
        self.status = status
        self.not_before = not_before


class Gone(FetchError):
    """The server says that the feed will never come back."""


class HostPaused(Exception):
    """The host has asked to be left alone until a time (microseconds): nothing was asked, and nothing failed."""

    def __init__(self, until: int) -> None:
        super().__init__(f"the host asked to be left alone until {until}")
        self.until = until


class FetchedAlready(Exception):
    """What a feed leads to is fetched as another feed, `url`: nothing more was asked, and nothing failed."""

    def __init__(self, url: str, address: str) -> None:
        super().__init__(f"fetched as {url}")
        self.address = address

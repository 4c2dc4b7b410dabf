"""Why a feed could not be fetched. These errors concern one feed; the others go on."""

from __future__ import annotations


class FetchError(Exception):
    """A fetch failed; the message is the cause. `status` is the answer's, 0 if there was none.

    `not_before` is the earliest time (microseconds) at which the server wants another request, if it says so.
    """

    def __init__(self, cause: str, status: int = 0, not_before: int | None = None) -> None:
        super().__init__(cause)
        self.status = status
        self.not_before = not_before


class Gone(FetchError):
    """The server says that the feed will never come back."""


class HostPaused(Exception):
    """The host wants no request until a time (microseconds). None was made, and nothing failed."""

    def __init__(self, until: int) -> None:
        super().__init__(f"the host asked to be left alone until {until}")
        self.until = until


class FetchedAlready(Exception):
    """The address that a feed leads to is fetched as another feed, `url`. It was not asked again, and nothing
    failed."""

    def __init__(self, url: str, address: str) -> None:
        super().__init__(f"fetched as {url}")
        self.address = address

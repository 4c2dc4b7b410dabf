"""What the next page tells once, such as that a query was paused. Kept here, so that no link makes a page tell it."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from threading import Lock

MOST = 1_000
"""So many texts wait for their pages. The oldest are dropped first."""


class Told:
    """Texts for the pages that come next."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._texts: OrderedDict[str, str] = OrderedDict()

    def keep(self, text: str) -> str:
        """Keeps a text, and returns the key to it, which nobody can guess."""
        key = secrets.token_urlsafe(9)
        with self._lock:
            self._texts[key] = text
            if len(self._texts) > MOST:
                self._texts.popitem(last=False)
        return key

    def take(self, key: str) -> str:
        """Returns the text of a key, which is gone from then on; "" if there is none."""
        with self._lock:
            return self._texts.pop(key, "")

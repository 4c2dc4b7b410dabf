"""Links of feeds: a key in the address lets readers in, and each link can be revoked by itself.

A key is a digest of a secret of the state, of what the feed is of, and of how often the link was revoked. No table has
it.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import secrets
from base64 import urlsafe_b64encode
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote
from uuid import UUID

from common.private import make_inside
from join_stage.store.protocol import StoreError

SECRETS, SECRET_FILE = "secrets", ".links"
"""The directory in a state that holds secrets, and the file there with that of the links. Its name is none that a sink
could name."""

BYTES = 32
"""The number of bytes of the secret."""

KEY_CHARACTERS = 22
"""The characters of a key: more than 128 bits."""

SETTING = "feed-link:"
"""The prefix of the settings that count how often a link was revoked."""

_OF = "query"
"""What a feed is of. It is a part of all keys, ids and settings, which stay as they are."""

_KEY = re.compile(rf"([\w-]{{{KEY_CHARACTERS}}})(?:\.([1-9][0-9]{{0,9}}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Links:
    """Makes and checks the keys of links."""

    secret: bytes

    def __repr__(self) -> str:
        return "Links()"

    def key(self, name: str, revoked: int) -> str:
        """Returns the key of a feed whose link was revoked some times."""
        digest = urlsafe_b64encode(self._digest("key", name, revoked)).decode()[:KEY_CHARACTERS]
        return f"{digest}.{revoked}" if revoked else digest

    def revoked_before(self, name: str, key: str) -> int | None:
        """Returns how often the link of a feed had been revoked when a key was made; None if we did not make it. Takes
        the same time whatever the key is."""
        found = _KEY.fullmatch(key)
        revoked = int(found[2] or 0) if found else 0
        return revoked if hmac.compare_digest(self.key(name, revoked).encode(), key.encode()) else None

    def feed_id(self, name: str) -> str:
        """Returns the id of a feed, which stays when its link is revoked."""
        return UUID(bytes=self._digest("id", name, 0)[:16], version=4).urn

    def _digest(self, use: str, name: str, revoked: int) -> bytes:
        return hmac.digest(self.secret, json.dumps([use, _OF, name, revoked]).encode(), sha256)


def links_of(state: Path) -> Links:
    """Returns the links of a state. Their secret is made if there is none. Raises StoreError, OSError."""
    path = make_inside(state, SECRETS) / SECRET_FILE
    if not path.exists():
        _make(path)
    secret = path.read_bytes()
    if len(secret) != BYTES:
        raise StoreError(f"{path} holds no secret of links: remove the file, and a new one is made; links will change")
    return Links(secret)


def _make(path: Path) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(BYTES))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):  # another process was faster: its secret counts
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def setting_of(name: str) -> str:
    """Returns the key of the setting that counts how often a link was revoked."""
    return f"{SETTING}{_OF}:{name}"


def feed_path(key: str, name: str) -> str:
    """Returns the path of a feed below the address of the site.

    >>> feed_path("KEY", "a b/é")
    '/f/KEY/a%20b%2F%C3%A9.atom'
    """
    return f"/f/{key}/{quote(name, safe='')}.atom"


def archive_path(key: str, name: str, number: int) -> str:
    """Returns the path of an archive.

    >>> archive_path("KEY", "a", 3)
    '/f/KEY/a/3.atom'
    """
    return f"/f/{key}/{quote(name, safe='')}/{number}.atom"

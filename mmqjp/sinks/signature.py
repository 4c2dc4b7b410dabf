"""Signatures of Standard Webhooks 1.0: who holds a secret can tell that a message is ours, and not an old one."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable

SECRET_PREFIX = "whsec_"


def signing_key(secret: str) -> bytes | None:
    """Returns the key that a secret stands for, which is Base64 after its prefix. None if it is something else."""
    text = secret.removeprefix(SECRET_PREFIX)
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True) or None
    except (binascii.Error, ValueError):
        return None


def signature(keys: Iterable[bytes], id: str, timestamp: int, body: bytes) -> str:
    """Returns the header `webhook-signature`: one signature a key. `timestamp` is in seconds."""
    signed = f"{id}.{timestamp}.".encode() + body
    made = (base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode() for key in keys)
    return " ".join(f"v1,{one}" for one in made)

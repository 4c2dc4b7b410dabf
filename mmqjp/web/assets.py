"""The files that every page uses, such as styles: read once, at addresses that change with their content."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files

from starlette.responses import Response

STATIC = "/static/"
"""Where the files are."""

TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
    "woff2": "font/woff2",
}
"""The types of the files that are served. Others are left alone."""

YEAR = 365 * 24 * 3600


class Assets:
    """The files in `static/`. Their addresses share one digest, so that they can name each other relatively."""

    def __init__(self, content: Mapping[str, bytes] | None = None) -> None:
        self._content = _read() if content is None else content
        every = b"\0".join(name.encode() + b"\0" + text for name, text in sorted(self._content.items()))
        self._digest = sha256(every).hexdigest()[:16]

    def url(self, name: str) -> str:
        """Returns the address of a file. Raises KeyError if there is none of this name."""
        if name not in self._content:
            raise KeyError(name)
        return f"{STATIC}{self._digest}/{name}"

    def response(self, digest: str, name: str) -> Response | None:
        """Returns a file, for browsers to keep; None if there is none, or it had this address with other content."""
        if digest != self._digest or name not in self._content:
            return None
        kept = {"Cache-Control": f"public, max-age={YEAR}, immutable"}
        return Response(self._content[name], headers=kept, media_type=TYPES[name.rpartition(".")[2]])


def _read() -> dict[str, bytes]:
    look = files("mmqjp.present").joinpath("templates", "page.css")  # which files of matches have inside
    found = [look, *files("mmqjp.web").joinpath("static").iterdir()]
    return {file.name: file.read_bytes() for file in found if file.name.rpartition(".")[2] in TYPES}

"""MMQJP: standing queries that join XML documents of many streams by their values, all queries at once."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feeds.document import Document
    from mmqjp.answers.output import Output
    from mmqjp.engine import Engine
    from xpath_stage.limits import Limits
    from xscl import XsclError, XsclErrors

__all__ = ["Document", "Engine", "Limits", "Output", "XsclError", "XsclErrors"]

_MODULES = {
    "Document": "feeds.document",
    "Engine": "mmqjp.engine",
    "Limits": "xpath_stage.limits",
    "Output": "mmqjp.answers.output",
    "XsclError": "xscl",
    "XsclErrors": "xscl",
}


def __getattr__(name: str) -> object:
    """What the package offers, imported when it is asked for: processes that Spark starts need little of it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]

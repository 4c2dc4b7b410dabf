"""For any Spark session: `attach` a store's tables, `register` the sources, read `drops`; and `stream` on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmqjp.spark.session import attach, drops, register

__all__ = ["attach", "drops", "register"]


def __getattr__(name: str) -> object:
    """What the package offers, imported when it is asked for: executors need little of it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mmqjp.spark import session

    return getattr(session, name)

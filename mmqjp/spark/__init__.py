"""For any Spark session: `attach` a store, `register` data sources, stream `drops`. Also the source of `stream`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feeds.spark.sources import drops
    from mmqjp.spark.source import attach, register

__all__ = ["attach", "drops", "register"]


def __getattr__(name: str) -> object:
    """Imports public functions on first use; executors need only some of the modules behind them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "drops":
        from feeds.spark.sources import drops

        return drops
    from mmqjp.spark import source

    return getattr(source, name)

"""Tells whether Spark is at hand in this process, without importing it."""

from __future__ import annotations

import sys
from collections.abc import Mapping

GATEWAY = "PYSPARK_GATEWAY_PORT"
"""The variable by which spark-submit tells where its JVM is."""


def runs_in_submit(environ: Mapping[str, str]) -> bool:
    """Whether spark-submit started this process."""
    return GATEWAY in environ


def has_session() -> bool:
    """Whether this process has a Spark session."""
    loaded = sys.modules.get("pyspark.sql")
    return loaded is not None and loaded.SparkSession.getActiveSession() is not None

"""MMQJP: standing queries that join XML documents of many streams by value, all queries at once."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from common.errors import InputError, InvalidValue, MmqjpError, OperationalError
    from feeds.documents import Document, SourceError
    from join_stage.protocol import UnknownPlan
    from join_stage.store.protocol import (
        OtherSession,
        Outdated,
        OutOfMemory,
        QuestionInterrupted,
        QuestionRefused,
        StoreError,
    )
    from join_stage.store.spark.java import JavaNotFound
    from mmqjp.answers.output import Output
    from mmqjp.present.output_why import NoOutput
    from mmqjp.queries.changes import InvalidEvents, NameTaken, PublishCycle, UnknownQuery
    from mmqjp.shown_engine import Engine
    from mmqjp.state.choice import InUse
    from templates.catalog import TooManyChains
    from xpath_stage.documents import Limits
    from xscl.problems import XsclError, XsclErrors

__all__ = [
    "Document",
    "Engine",
    "InUse",
    "InputError",
    "InvalidEvents",
    "InvalidValue",
    "JavaNotFound",
    "Limits",
    "MmqjpError",
    "NameTaken",
    "NoOutput",
    "OperationalError",
    "OtherSession",
    "OutOfMemory",
    "Outdated",
    "Output",
    "PublishCycle",
    "QuestionInterrupted",
    "QuestionRefused",
    "SourceError",
    "StoreError",
    "TooManyChains",
    "UnknownPlan",
    "UnknownQuery",
    "XsclError",
    "XsclErrors",
]

_MODULES = {
    "Document": "feeds.documents",
    "Engine": "mmqjp.shown_engine",
    "InUse": "mmqjp.state.choice",
    "InputError": "common.errors",
    "InvalidEvents": "mmqjp.queries.changes",
    "InvalidValue": "common.errors",
    "JavaNotFound": "join_stage.store.spark.java",
    "Limits": "xpath_stage.documents",
    "MmqjpError": "common.errors",
    "NameTaken": "mmqjp.queries.changes",
    "NoOutput": "mmqjp.present.output_why",
    "OperationalError": "common.errors",
    "OtherSession": "join_stage.store.protocol",
    "OutOfMemory": "join_stage.store.protocol",
    "Outdated": "join_stage.store.protocol",
    "Output": "mmqjp.answers.output",
    "PublishCycle": "mmqjp.queries.changes",
    "QuestionInterrupted": "join_stage.store.protocol",
    "QuestionRefused": "join_stage.store.protocol",
    "SourceError": "feeds.documents",
    "StoreError": "join_stage.store.protocol",
    "TooManyChains": "templates.catalog",
    "UnknownPlan": "join_stage.protocol",
    "UnknownQuery": "mmqjp.queries.changes",
    "XsclError": "xscl",
    "XsclErrors": "xscl",
}


def __getattr__(name: str) -> object:
    """Imports exported names on first use, which keeps the start of Spark's worker processes fast."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]

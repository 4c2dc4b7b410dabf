"""MMQJP: standing queries that join XML documents of many streams by value, all queries at once."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from common.errors import InputError as InputError
    from common.errors import InvalidValue as InvalidValue
    from common.errors import MmqjpError as MmqjpError
    from common.errors import OperationalError as OperationalError
    from feeds.documents import Document as Document
    from feeds.documents import SourceError as SourceError
    from feeds.documents import Visit as Visit
    from join_stage.plans import UnknownPlan as UnknownPlan
    from join_stage.store.protocol import OtherSession as OtherSession
    from join_stage.store.protocol import Outdated as Outdated
    from join_stage.store.protocol import OutOfMemory as OutOfMemory
    from join_stage.store.protocol import QuestionInterrupted as QuestionInterrupted
    from join_stage.store.protocol import QuestionRefused as QuestionRefused
    from join_stage.store.protocol import StoreError as StoreError
    from join_stage.store.spark.java import JavaNotFound as JavaNotFound
    from mmqjp.answers.output import Output as Output
    from mmqjp.present.output_why import NoOutput as NoOutput
    from mmqjp.queries.changes import InvalidEvents as InvalidEvents
    from mmqjp.queries.changes import NameTaken as NameTaken
    from mmqjp.queries.changes import PublishCycle as PublishCycle
    from mmqjp.queries.changes import UnknownQuery as UnknownQuery
    from mmqjp.shown_engine import Engine as Engine
    from mmqjp.state.engine_choice import InUse as InUse
    from templates.catalog import TooManyChains as TooManyChains
    from xpath_stage.documents import Limits as Limits
    from xscl.text import XsclError as XsclError
    from xscl.text import XsclErrors as XsclErrors

_NAMES = {
    "common.errors": "InputError InvalidValue MmqjpError OperationalError",
    "feeds.documents": "Document SourceError Visit",
    "join_stage.plans": "UnknownPlan",
    "join_stage.store.protocol": "OtherSession OutOfMemory Outdated QuestionInterrupted QuestionRefused StoreError",
    "join_stage.store.spark.java": "JavaNotFound",
    "mmqjp.answers.output": "Output",
    "mmqjp.present.output_why": "NoOutput",
    "mmqjp.queries.changes": "InvalidEvents NameTaken PublishCycle UnknownQuery",
    "mmqjp.shown_engine": "Engine",
    "mmqjp.state.engine_choice": "InUse",
    "templates.catalog": "TooManyChains",
    "xpath_stage.documents": "Limits",
    "xscl.text": "XsclError XsclErrors",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> object:
    """Imports exported names on first use, which keeps the start of Spark's worker processes fast."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]

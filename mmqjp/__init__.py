"""MMQJP: standing queries that join XML documents of many streams by their values, all queries at once."""

from feeds.document import Document
from mmqjp.engine import Engine
from mmqjp.outputs import Output
from xpath_stage.limits import Limits
from xscl import XsclError, XsclErrors

__all__ = ["Document", "Engine", "Limits", "Output", "XsclError", "XsclErrors"]

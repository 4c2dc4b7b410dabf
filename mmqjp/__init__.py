"""MMQJP: standing queries that join XML documents of many streams by their values, all queries at once."""

from feeds.document import Document
from mmqjp.delivery import Output
from mmqjp.engine import Engine
from xscl import XsclError, XsclErrors

__all__ = ["Document", "Engine", "Output", "XsclError", "XsclErrors"]

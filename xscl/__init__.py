"""XSCL, the query language: from text to a checked syntax tree, and back."""

from xscl.parser import parse_script
from xscl.printer import to_xscl
from xscl.syntax import Query, Script
from xscl.text import XsclError, XsclErrors

__all__ = ["Query", "Script", "XsclError", "XsclErrors", "parse_script", "to_xscl"]

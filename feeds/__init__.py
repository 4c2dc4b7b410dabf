"""Getting documents: files, directories, JSON lines, feeds and crawls, all as `Document` or `Reject`."""

from feeds.bad_input import SourceError
from feeds.document import Document, Reject, parse_time
from feeds.sources import read_documents

__all__ = ["Document", "Reject", "SourceError", "parse_time", "read_documents"]

"""Document sources: files, directories, JSON lines, feeds and crawls, all as `Document` or `Reject`."""

from feeds.documents import Document, Reject, SourceError, parse_time
from feeds.tail import read_documents

__all__ = ["Document", "Reject", "SourceError", "parse_time", "read_documents"]

"""Getting documents: files, directories, JSON lines, feeds and crawls, all as `Document` or `Reject`."""

from feeds.bad_input import SourceError
from feeds.document import Document, Reject
from feeds.sources import read_documents
from feeds.times import parse_time

__all__ = ["Document", "Reject", "SourceError", "parse_time", "read_documents"]

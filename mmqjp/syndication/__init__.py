"""Outputs as Atom feeds with archives: the documents, their links and keys, over HTTP and as files."""

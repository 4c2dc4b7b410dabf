"""Outputs as Atom feeds with archives, over HTTP and as files: documents, links and keys."""

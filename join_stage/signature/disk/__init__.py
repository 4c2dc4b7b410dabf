"""Runs of postings on disk: files that are mapped into memory, merged as they become many, and named by a manifest."""

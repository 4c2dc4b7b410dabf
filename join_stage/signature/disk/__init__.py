"""Runs of postings on disk: files of which pages are read, merged as they become many, and named by a manifest."""

"""Tests of documents and their times."""

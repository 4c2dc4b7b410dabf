"""Tests of reading feeds, files and crawls."""

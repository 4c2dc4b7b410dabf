"""Looks for matches of a PATTERN that are made of some documents, and says what the first is in the way."""

"""Tests of `mmqjp.syndication`."""

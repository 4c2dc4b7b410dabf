"""Tests of `mmqjp.queries`."""

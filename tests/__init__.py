"""Tests of all packages; not installed."""

"""Tests of all packages, in folders as theirs; not installed."""

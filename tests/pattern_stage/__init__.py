"""Tests of event patterns."""

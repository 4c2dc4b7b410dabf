"""Tests of what is explained to people."""

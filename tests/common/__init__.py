"""Tests of what all packages use."""

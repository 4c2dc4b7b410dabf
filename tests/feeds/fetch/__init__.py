"""Tests of fetching feeds."""

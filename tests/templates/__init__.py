"""Tests of templates and the catalog."""

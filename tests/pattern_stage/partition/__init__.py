"""Tests of `pattern_stage.partition`."""

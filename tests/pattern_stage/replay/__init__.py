"""Tests of `pattern_stage.replay`."""

"""Tests of `pattern_stage.in_sql`."""

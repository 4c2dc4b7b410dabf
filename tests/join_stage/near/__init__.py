"""Tests of near-equal texts in the join state."""

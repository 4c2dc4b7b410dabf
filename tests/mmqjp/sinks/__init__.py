"""Tests of where output lines go."""

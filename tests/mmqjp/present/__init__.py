"""Tests of `mmqjp.present`."""

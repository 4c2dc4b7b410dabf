"""Tests of the benchmarks: what they check and write, with tiny cases."""

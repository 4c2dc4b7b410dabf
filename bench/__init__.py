"""Benchmarks: stage 1, stage 2 and whole runs, each against a baseline and a floor."""

"""The benchmarks: stage 1, stage 2 and whole runs, each compared with a baseline and a floor."""

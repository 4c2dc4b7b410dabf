"""Answering the matches of a large batch by many tasks, on the executors of Spark."""

"""Tests of answering batches."""

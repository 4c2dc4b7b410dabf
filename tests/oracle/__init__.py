"""Computes what queries answer, by brute force, with none of the product's code; and the oracle's own tests."""

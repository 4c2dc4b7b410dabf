"""Sinks write output lines, each exactly once where the destination allows it."""

"""A model of live use, random operations for it, and their run on an engine."""

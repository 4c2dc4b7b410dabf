"""Fetches feeds politely and safely, without losing or repeating a response."""

"""Fetching feeds: politely, safely, and without losing or repeating a response."""

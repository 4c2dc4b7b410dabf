"""Event patterns: Cayuga's operators over streams of events, for all statements together."""

"""The meaning of queries, without syntax: tree patterns, value joins, and values that are derived and compared."""

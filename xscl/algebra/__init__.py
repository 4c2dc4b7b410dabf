"""What queries mean, without syntax: tree patterns, value joins, terms, the values that are derived and compared."""

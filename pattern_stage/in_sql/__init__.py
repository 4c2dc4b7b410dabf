"""Event statements over a finite, complete set of events, as SQL: NEXT, FILTER, SELECT and UNION, but not FOLD."""

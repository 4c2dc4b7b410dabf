"""Standing queries: compiles text to rows of R_T, tracks subscriptions, stores queries."""

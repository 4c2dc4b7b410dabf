"""Templates of conjunctive queries: join graph, minor, canonical template, row of R_T, and the shared catalog."""

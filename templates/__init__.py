"""From conjunctive queries to the few templates that they share, and the rows of R_T that tell them apart."""

"""Stage 1: one automaton for the tree patterns of all queries; witness relations of the documents it walks."""

"""The `signature` plan: it finds which edges each pair of documents satisfies, and looks up the rows of a set once."""

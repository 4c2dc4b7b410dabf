"""The `signature` plan: finds which edges each pair of documents satisfies, and looks up the rows of each set once."""

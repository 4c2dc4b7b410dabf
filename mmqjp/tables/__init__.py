"""The tables of a store as the rest of the system reads and writes them: rows, settings, offsets, what is numbered."""

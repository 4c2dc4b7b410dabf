"""The tables of a store beside the join state: schemas, and all SQL over them."""

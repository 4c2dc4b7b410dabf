"""A store's tables beside the join state: schemas, and all SQL over them."""

"""Stage 2: value joins of the witnesses of many documents, for all queries of a template at once."""

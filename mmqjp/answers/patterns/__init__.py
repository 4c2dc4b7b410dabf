"""Event patterns within batches: events from documents, their time, and the results of event statements."""

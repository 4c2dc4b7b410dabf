"""The areas of the page: each module has a `router` with its pages and their twins under `/api/v1`."""

"""The page and its JSON API, served by `mmqjp serve`."""

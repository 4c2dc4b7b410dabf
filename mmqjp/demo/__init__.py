"""The packaged example of `mmqjp demo`: invented feeds and standing queries over them."""

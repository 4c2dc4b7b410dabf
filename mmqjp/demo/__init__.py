"""The packaged example of `mmqjp demo`: sample feeds and standing queries over them."""

"""What queries answer, by brute force, without any code of the product's; and the oracle's own tests."""

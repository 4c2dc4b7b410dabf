"""The service: reads sources batch by batch for as long as it is let, and takes commands meanwhile."""

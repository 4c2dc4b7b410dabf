"""Tests of the service on Spark."""

"""Tests of the tables of a store."""

"""Tests of the system as a whole; its rooms have folders."""

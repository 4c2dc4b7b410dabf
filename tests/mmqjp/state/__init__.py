"""Tests of stores over time: crashes, faults, migration, eviction, owners."""

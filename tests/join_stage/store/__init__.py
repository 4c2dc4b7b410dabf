"""Tests of the tables that stage 2 keeps."""

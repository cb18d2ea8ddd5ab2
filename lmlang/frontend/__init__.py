"""The language: what a program records, and how a recording is executed on a backend."""

"""Causal language models, and how their files are found and read."""

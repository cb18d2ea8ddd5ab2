"""Constraints on text: characters, bytes and token ids only; knows no request and no model."""

"""Backends that are not our own engine."""

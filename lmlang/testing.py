"""What tests of programs need: backends without a model."""

from lmlang.backends.scripted import ScriptedBackend

__all__ = ["ScriptedBackend"]

"""The radix cache: a tree of tokens over the slots of the KV pool."""

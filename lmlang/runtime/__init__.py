"""The machine: model, KV pool, radix cache, scheduler and engine loop behind one Backend."""

"""Triton forms of the kernels, for CUDA devices; their contracts stand in `lmlang.kernels`.

Nothing here is imported unless a CUDA device (or Triton's interpreter, in tests) runs it.
"""

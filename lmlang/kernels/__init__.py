"""Operations on tensors: tensors in, tensors out, no request, no model, no global state.

Each module holds one kind of operation: its contract (shapes, dtypes, what is written) in the
docstring, and the reference implementation in plain torch with which every other form must agree.
"""

from lmlang.kernels import ops as ops

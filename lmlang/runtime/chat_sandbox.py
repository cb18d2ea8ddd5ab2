"""Jinja for chat templates: transformers' names in a sandbox that bounds time and memory.

A template is a foreign program. Every loop pass, call, filter and operator is counted, and every
value it makes is weighed before it is made; what is too much ends with an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import BuiltinMethodType, CodeType, MethodType
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from lmlang.runtime import chat_filters
from lmlang.runtime.chat_budget import MAX_NUMBER, Budget, current, foresee, foresee_format
from lmlang.runtime.chat_filters import TemplateNamespace, make_dict, marks, traced
from lmlang.runtime.chat_trace import MarkedText, Trace, rewritten

TEXT_METHODS = frozenset({
    "capitalize", "casefold", "center", "count", "endswith", "find", "format", "index", "isalnum",
    "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric",
    "isprintable", "isspace", "istitle", "isupper", "join", "ljust", "lower", "lstrip",
    "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rjust",
    "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase",
    "title", "upper", "zfill",
})  # fmt: skip
OTHER_METHODS = frozenset({"copy", "count", "get", "index", "items", "keys", "values"})
NOT_COMPILED = (
    *(jinja2.TemplateError, RecursionError, SyntaxError, ValueError, MemoryError),
    *(OverflowError, TypeError),
)
"""What the text of a template can end in when it is compiled."""


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of all chat templates. Stateless: budgets belong to a rendering."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, "jinja2.ext.loopcontrols"],
            cache_size=0,
            optimized=False,
            finalize=chat_filters.finalize,
        )
        self.filters = chat_filters.bounded_filters()
        self.tests["in"] = chat_filters.is_in
        self.globals = {
            **{name: self.globals[name] for name in ("range", "cycler", "joiner")},
            "dict": make_dict,
            "namespace": TemplateNamespace,
            "raise_exception": chat_filters.raise_exception,
            "strftime_now": chat_filters.strftime_now,
        }

    concat = staticmethod(chat_filters.concat)

    def unsafe_undefined(self, obj: Any, attribute: str) -> jinja2.Undefined:
        """Refuse at once what Jinja would write as nothing."""
        raise SecurityError(
            f"access to attribute {attribute!r} of {type(obj).__name__!r} object is unsafe."
        )

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a macro, a method or one of the names above, within the budget."""
        budget = current.get()
        budget.spend(1)
        owner = getattr(obj, "__self__", None)
        name = getattr(obj, "__name__", "")
        if isinstance(owner, str):
            if name not in TEXT_METHODS:
                raise SecurityError(f"the method {name!r} of texts is not available here")
            for hidden in ("_loop_vars", "_block_vars"):  # Jinja's own, for its `Context.call`
                kwargs.pop(hidden, None)
            args = tuple([budget.settled(argument) for argument in args])
            foresee(budget, name, owner, args)
            made = budget.admit(traced(budget, obj, owner, args, kwargs))
            if not isinstance(made, str):  # pieces of the text, which are texts of their own
                budget.made -= str.__len__(owner)
            return made
        if isinstance(owner, (dict, list, tuple)):
            if name not in OTHER_METHODS:
                raise SecurityError(f"the method {name!r} is not available here")
        elif isinstance(obj, BuiltinMethodType):
            raise SecurityError(f"{name!r} is not available here")
        if not isinstance(obj, Macro) and obj is not make_dict and obj is not TemplateNamespace:
            budget.trace.reusable &= not marks((args, kwargs))
        return budget.admit(super().call(context, obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """``str.format``, its result foreseen and its parts kept."""
        if not isinstance(value, (BuiltinMethodType, MethodType)):
            return None
        if value.__name__ != "format" or not isinstance(value.__self__, str):
            return None
        owner = value.__self__
        plain = "".join(owner)
        wrapped = super().wrap_str_format(plain.format)
        assert wrapped is not None

        def format(*args: Any, **kwargs: Any) -> str:
            budget = current.get()
            budget.spend(1)
            foresee_format(budget, plain, "{", (*args, kwargs))
            made = traced(budget, wrapped, plain, args, kwargs)
            if isinstance(owner, MarkedText):
                made = rewritten(budget.trace, made)
            return str(budget.admit(made))

        return format

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An operator whose result is foreseen and weighed."""
        budget = current.get()
        if operator == "+" and isinstance(left, str) and isinstance(right, str):
            budget.allow(str.__len__(left) + str.__len__(right))
            return budget.admit(left + right)
        sides = [budget.weight(side) for side in (left, right)]
        numbers = [isinstance(side, (int, float)) for side in (left, right)]
        if operator == "+" and not any(numbers):
            budget.allow(sum(sides))
        elif operator == "*" and not all(numbers):
            times = [side for side in (left, right) if isinstance(side, int)]
            budget.allow(max(sides) * max(times, default=1))
        elif operator in ("*", "**"):
            bits = [side.bit_length() if isinstance(side, int) else 64 for side in (left, right)]
            size = sum(bits) if operator == "*" else bits[0] * max(int(right), 0)
            if size > MAX_NUMBER:
                raise jinja2.TemplateRuntimeError("a too large value: a number of many digits")
        elif operator == "%" and isinstance(left, str):
            foresee_format(budget, left, "%", right)
            made = traced(budget, lambda value: str.__mod__("".join(left), value), left, (right,))
            if isinstance(left, MarkedText):
                made = rewritten(budget.trace, made)
            return budget.admit(made)
        return budget.admit(super().call_binop(context, operator, left, right))

    def compiled(self, source: str) -> CodeType:
        """The template as code that counts its loop passes and values.

        Raises:
            Exception: One of `NOT_COMPILED`: it is no valid Jinja.
        """
        tree = _Counted().visit(self.parse(source))
        code = self.compile(tree, "chat template", "<chat template>")
        assert isinstance(code, CodeType)
        return code

    def rendered(
        self, template: jinja2.Template, trace: Trace, names: Mapping[str, Any]
    ) -> list[str]:
        """The texts that a template writes, in order.

        Raises:
            Refused: The template refuses, in its own words.
            Exception: Any other, as a template may raise what it likes.
        """
        budget = Budget(trace)
        token = current.set(budget)
        length = 0
        parts: list[str] = []
        try:
            for part in template.generate(**names):
                length += str.__len__(part)
                budget.allow(length)
                parts.append(part)
        finally:
            current.reset(token)
        return parts


@cache
def sandbox() -> Sandbox:
    """The one environment, made when it is first needed."""
    return Sandbox()


class _Counted(NodeTransformer):
    """Puts counters into a template's tree; the names of its methods are Jinja's."""

    def visit_For(self, node: jinja2.nodes.For) -> jinja2.nodes.Node:  # noqa: N802
        self.generic_visit(node)
        count = _filtered(jinja2.nodes.Const(None), "_pass")
        node.body.insert(0, jinja2.nodes.ExprStmt(count))
        if node.test is not None:
            node.test = jinja2.nodes.And(count, node.test)
        return node

    def visit_Concat(self, node: jinja2.nodes.Concat) -> jinja2.nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(jinja2.nodes.List(node.nodes), "_concat")

    def visit_List(self, node: Any) -> jinja2.nodes.Node:  # noqa: N802
        self.generic_visit(node)
        constant = all(isinstance(item, jinja2.nodes.Const) for item in node.iter_child_nodes())
        if constant or getattr(node, "ctx", "load") != "load":
            return node  # type: ignore[no-any-return]
        return _filtered(node, "_admit")

    visit_Tuple = visit_Dict = visit_List  # noqa: N815

    def visit_Getitem(self, node: jinja2.nodes.Getitem) -> jinja2.nodes.Node:  # noqa: N802
        self.generic_visit(node)
        is_slice = isinstance(node.arg, jinja2.nodes.Slice)
        return _filtered(node, "_admit") if is_slice and node.ctx == "load" else node

    def visit_Compare(self, node: jinja2.nodes.Compare) -> jinja2.nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if any(operand.op in ("in", "notin") for operand in node.ops):
            node.expr = _filtered(node.expr, "_seen")
        return node

    def visit_ScopedEvalContextModifier(self, node: Any) -> jinja2.nodes.Node:  # noqa: N802
        raise jinja2.TemplateSyntaxError("autoescape is not available here", node.lineno or 1)


def _filtered(node: jinja2.nodes.Expr, name: str) -> jinja2.nodes.Filter:
    return jinja2.nodes.Filter(node, name, [], [], None, None)


class _GenerationTag(jinja2.ext.Extension):
    """``{% generation %}…{% endgeneration %}``: marks text for training; no effect."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own protocol

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Leave the tag away, keep what it holds."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)

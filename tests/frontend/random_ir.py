"""Strategies: well-formed programs of IR, and values in them."""

import string

from hypothesis import strategies as st

from lmlang.frontend import ir
from lmlang.grammar.spec import Choice, Ebnf, Either, JsonSchema, Regex

anything = st.text(st.characters(exclude_categories=()), max_size=8)
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
names = st.sampled_from(["x", "tip", "_0", "None", "ref", "two words", 'a"b', "é", "\ud800"])
floats = st.floats(0, 1, exclude_min=True)
bigs = st.integers() | st.integers(-(2**20_000), 2**20_000)
values = st.one_of(
    st.none(),
    st.booleans(),
    bigs,
    st.floats(allow_nan=False, allow_infinity=False),
    anything,
    st.builds(ir.Opaque, anything),
)
parameters = st.lists(
    st.builds(
        ir.Parameter,
        st.sampled_from(["*args", "topic", "p", "**kw"]) | anything,
        st.sampled_from(["", "str", "list[int] | None", "dict[str, list[int]]", "a b"]) | anything,
    ),
    max_size=4,
    unique_by=lambda parameter: parameter.name.lstrip("*"),
).map(tuple)


def optional(strategy):
    return st.none() | strategy


def tuples(strategy):
    return st.lists(strategy, max_size=3, unique=True).map(tuple)


specs = st.one_of(
    st.builds(Regex, texts.filter(bool)),
    st.builds(JsonSchema, texts.filter(bool), st.sampled_from(["line", "compact", 1, 8])),
    st.builds(Ebnf, texts.filter(bool), st.sampled_from(["root", "two words"])),
    st.builds(Choice, st.lists(texts.filter(bool), min_size=1, max_size=3, unique=True).map(tuple)),
)
constraints = specs | st.builds(Either, st.lists(specs, min_size=1, max_size=3).map(tuple))


def gens(state, made, name):
    """A generation that has a constraint, or what a constraint leaves no room for."""
    return st.booleans().flatmap(lambda bound: _gens(state, made, name, bound))


def _gens(state, made, name, bound):
    own = (
        {
            "constraint": constraints,
            "on_budget": optional(st.sampled_from(["close", "raise"])),
        }
        if bound
        else {
            "min_tokens": optional(st.integers(0, 100)),
            "stop_regex": optional(
                tuples(st.sampled_from(["a+", r"\\d{2}\"", "\n|é", "[^x]y", "(?i)end"]))
            ),
            "ignore_eos": optional(st.booleans()),
            "include_stop": optional(st.booleans()),
            "heal": optional(st.booleans()),
        }
    )
    return st.builds(
        ir.Gen,
        st.just(state),
        st.just(made),
        st.just(name),
        **own,
        think=optional(st.integers(0, 1_000_000)),
        provenance=optional(st.booleans()),
        processor=optional(anything),
        max_tokens=optional(st.integers(100, 1_000_000)),
        n=optional(st.integers(1, 9)),
        stop=optional(tuples(texts.filter(bool))),
        stop_token_ids=optional(tuples(st.integers(0, 2**31 - 1))),
        temperature=optional(st.floats(0, 1_000)),
        top_p=optional(floats),
        top_k=optional(st.integers(1, 2**31 - 1)),
        min_p=optional(floats),
        frequency_penalty=optional(st.floats(-2, 2)),
        presence_penalty=optional(st.floats(-2, 2)),
        repetition_penalty=optional(floats),
        return_logprob=optional(st.booleans()),
        logprob_start_len=optional(st.integers(-1, 9)),
        top_logprobs_num=optional(st.integers(0, 9)),
        return_text_in_logprobs=optional(st.booleans()),
        logit_bias=optional(
            st.dictionaries(st.integers(0, 2**31 - 1), st.floats(-100, 100), max_size=3).map(
                lambda bias: tuple(sorted(bias.items()))
            )
        ),
        seed=optional(st.integers(0, 2**63 - 1)),
    )


class Line:
    def __init__(self, newest, parent=None):
        self.newest = newest
        self.role = parent.role if parent else None
        self.visible = set(parent.visible) if parent else set()
        self.own = set()
        self.scopes = []
        self.forks = []

    def define(self, name):
        self.visible.add(name)
        self.own.add(name)


@st.composite
def programs(draw, size=20):
    """A program that `verify` accepts, of all kinds of nodes."""
    nodes, made = [ir.Start()], 0
    known = draw(parameters)
    arguments = [p.name.lstrip("*") for p in known if p.name.lstrip("*")]
    lines = [Line(0)]

    def new():
        nonlocal made
        made += draw(st.integers(1, 3))
        return made

    for _ in range(draw(st.integers(0, size))):
        line = draw(st.sampled_from(lines))
        state = line.newest
        kinds = ["text", "gen", "select", "image", "set_var", "scope", "call", "fork"]
        kinds += ["end_role"] if line.role else ["role"]
        kinds += ["end_scope"] if line.scopes else []
        kinds += ["ref"] if line.visible else []
        kinds += ["arg"] if arguments else []
        kinds += ["join"] if line.forks else []
        kind = draw(st.sampled_from(kinds))
        if kind == "fork":
            ids = tuple(new() for _ in range(draw(st.integers(1, 3))))
            nodes.append(ir.Fork(state, ids))
            children = [Line(i, line) for i in ids]
            line.forks.append((line.role, children))
            lines += children
            continue
        to = new()
        if kind == "text":
            nodes.append(ir.Text(state, to, draw(texts)))
        elif kind == "gen":
            name = draw(names)
            nodes.append(draw(gens(state, to, name)))
            line.define(name)
        elif kind == "select":
            name = draw(names)
            choices = draw(st.lists(texts.filter(bool), min_size=1, max_size=3, unique=True))
            nodes.append(
                ir.Select(
                    state,
                    to,
                    name,
                    tuple(choices),
                    draw(optional(st.booleans())),
                    draw(optional(st.floats(0, 9))),
                    draw(optional(anything)),
                )
            )
            line.define(name)
        elif kind == "image":
            nodes.append(ir.Image(state, to, draw(anything), draw(optional(anything))))
        elif kind == "set_var":
            name = draw(names)
            nodes.append(ir.SetVar(state, to, name, draw(values)))
            line.define(name)
        elif kind == "scope":
            line.scopes.append(draw(names))
            nodes.append(ir.Scope(state, to, line.scopes[-1]))
        elif kind == "end_scope":
            line.define(line.scopes[-1])
            nodes.append(ir.EndScope(state, to, line.scopes.pop()))
        elif kind == "call":
            keys = st.sampled_from(string.ascii_letters) | anything
            given = draw(st.lists(st.tuples(keys, values), max_size=3))
            nodes.append(ir.Call(state, to, draw(anything), tuple(given)))
        elif kind == "role":
            line.role = draw(st.sampled_from(["user", "system", "of_2-words"]))
            nodes.append(ir.Role(state, to, line.role))
        elif kind == "end_role":
            nodes.append(ir.EndRole(state, to, line.role))
            line.role = None
        elif kind == "ref":
            nodes.append(ir.Ref(state, to, draw(st.sampled_from(sorted(line.visible)))))
        elif kind == "arg":
            nodes.append(ir.Arg(state, to, draw(st.sampled_from(arguments))))
        else:
            role, children = line.forks.pop()
            fits = all(line.role == role == child.role for child in children)
            mode = draw(st.sampled_from(["gather_variable", "concate_and_append"][: 1 + fits]))
            nodes.append(ir.Join(state, to, tuple(c.newest for c in children), mode))
            if mode == "gather_variable":
                for child in children:
                    for name in child.own:
                        line.define(name)
        line.newest = to
    if draw(st.booleans()):
        nodes.append(ir.Return(lines[0].newest, draw(values)))
    return ir.Program(draw(anything), tuple(nodes), known)

"""Chat templates by name, by file and as they are written out.

The named ones are short and of our own writing; a model's own template is always the better one.
"""

from __future__ import annotations

import difflib
import json
import os
import stat
import threading
from pathlib import Path

from lmlang.errors import ProgramError, ProgramTypeError, quote
from lmlang.runtime.chat_sandbox import NOT_COMPILED, sandbox

PLAIN_TEMPLATE = (
    "{% for message in messages %}"
    "{{ message['role'] | capitalize }}:\n{{ message['content'] }}\n\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}Assistant:\n{% endif %}"
)
"""For models without a template: ``User:`` and the content on lines of their own, an empty line
behind. It has no end-of-turn token; give a stop string such as ``"\\n\\n"``."""

MAX_TEMPLATE_CHARACTERS = 200_000
MAX_FILE_BYTES = 16 * 2**20

_TAGGED = (
    "{{% for message in messages %}}{heading}{{{{ message['content'] }}}}{ending}{{% endfor %}}"
    "{{% if add_generation_prompt %}}{prompt}{{% endif %}}"
)
_SYSTEM_FIRST = (
    "{% set lead = '' %}{% set turns = messages %}"
    "{% if messages and messages[0]['role'] == 'system' %}"
    "{% set lead = messages[0]['content'] %}{% set turns = messages[1:] %}{% endif %}"
)
"""Takes a system turn from the front; its content goes into the first turn of the user."""
_ALTERNATE = (
    "{% if message['role'] not in ('user', 'assistant')"
    " or (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('turns of user and assistant must alternate, the user first') }}"
    "{% endif %}"
)
_INSTRUCTED = (
    _SYSTEM_FIRST
    + "{{ bos_token }}{% for message in turns %}"
    + _ALTERNATE
    + "{% if message['role'] == 'user' %}"
)

_named: dict[str, str] = {
    "plain": PLAIN_TEMPLATE,
    "chatml": _TAGGED.format(
        heading="<|im_start|>{{ message['role'] }}{{ '\n' }}",
        ending="<|im_end|>{{ '\n' }}",
        prompt="<|im_start|>assistant{{ '\n' }}",
    ),
    "llama-3": (
        "{{ bos_token }}{% for message in messages %}"
        "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
        "{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
        "{% if add_generation_prompt %}"
        "<|start_header_id|>assistant<|end_header_id|>{{ '\n\n' }}{% endif %}"
    ),
    "llama-2": (
        _INSTRUCTED + "{% if not loop.first %}{{ bos_token }}{% endif %}[INST] "
        "{% if loop.first and lead %}<<SYS>>\n{{ lead | trim }}\n<</SYS>>{{ '\n\n' }}{% endif %}"
        "{{ message['content'] | trim }} [/INST]"
        "{% else %} {{ message['content'] | trim }} {{ eos_token }}{% endif %}{% endfor %}"
    ),
    "mistral": (
        _INSTRUCTED + "[INST] {% if loop.first and lead %}{{ lead }}{{ '\n\n' }}{% endif %}"
        "{{ message['content'] }} [/INST]"
        "{% else %} {{ message['content'] | trim }}{{ eos_token }}{% endif %}{% endfor %}"
    ),
    "gemma": (
        _SYSTEM_FIRST
        + "{{ bos_token }}{% for message in turns %}"
        + _ALTERNATE
        + "<start_of_turn>{{ 'model' if message['role'] == 'assistant' else 'user' }}\n"
        "{% if loop.first and lead %}{{ lead | trim }}{{ '\n\n' }}{% endif %}"
        "{{ message['content'] | trim }}<end_of_turn>{{ '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}<start_of_turn>model{{ '\n' }}{% endif %}"
    ),
    "phi-3": _TAGGED.format(
        heading="<|{{ message['role'] }}|>{{ '\n' }}",
        ending="<|end|>{{ '\n' }}",
        prompt="<|assistant|>{{ '\n' }}",
    ),
    "zephyr": _TAGGED.format(
        heading="<|{{ message['role'] }}|>{{ '\n' }}",
        ending="{{ eos_token }}{{ '\n' }}",
        prompt="<|assistant|>{{ '\n' }}",
    ),
}
_BUILT_IN = frozenset(_named)
_lock = threading.Lock()


def register_chat_template(name: str, source: str) -> None:
    """Give a Jinja chat template a name; registered anew, it stands for the new template.

    Example:
        >>> register_chat_template("loud", "{% for m in messages %}{{ m.content }}!{% endfor %}")

    Raises:
        ProgramError: The name is empty, reads like Jinja or is built in, or the template is too
            long or no valid Jinja.
    """
    if not isinstance(name, str) or not isinstance(source, str):
        raise ProgramTypeError(
            "register_chat_template takes two texts, a name and a template in Jinja, and got "
            f"{type(name).__name__} and {type(source).__name__}."
        )
    if not name.strip() or _is_jinja(name):
        raise ProgramError(
            f"{quote(name)} is no name of a chat template: give a short word, and the template "
            "as the second argument."
        )
    key, shown = name.strip().lower(), f"the chat template {quote(name)}"
    if key in _BUILT_IN:
        raise ProgramError(f"{shown} is built in: register yours under another name.")
    _checked_length(source, shown)
    try:
        sandbox().compiled(source)
    except NOT_COMPILED as error:
        raise ProgramError(
            f"{shown} is no valid Jinja ({type(error).__name__}: {quote(str(error))})."
        ) from error
    with _lock:
        _named[key] = source


def chat_template_names() -> list[str]:
    """The names that are known, sorted."""
    with _lock:
        return sorted(_named)


def resolve_chat_template(
    spec: str | os.PathLike[str] | None, default: str | None = None
) -> str | None:
    """The Jinja source of what ``chat_template=`` says.

    Args:
        spec: A name that is built in or registered; a path of a file that holds Jinja, or of a
            ``tokenizer_config.json``; a template itself (anything with ``{{`` or ``{%``); or
            None for the model's own.
        default: The model's own source, None where it has none.

    Returns:
        The source; None stands for the plain template.

    Raises:
        ProgramError: No template has that name, or the file cannot be used.
    """
    if spec is None:
        return default
    if isinstance(spec, os.PathLike):
        return _from_file(Path(spec))
    if not isinstance(spec, str):
        raise ProgramTypeError(
            f'chat_template must be a name (as "chatml"), a path or a template in Jinja, not '
            f"{type(spec).__name__}."
        )
    if _is_jinja(spec):
        _checked_length(spec, "the chat template")
        return spec
    with _lock:
        found = _named.get(spec.strip().lower())
        names = sorted(_named)
    if found is not None:
        return found
    looks_like_a_path = os.sep in spec or "/" in spec or Path(spec).suffix in (".jinja", ".json")
    if looks_like_a_path or _is_file(spec):
        return _from_file(Path(spec))
    near = difflib.get_close_matches(spec.lower(), names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(quote, near))}?" if near else "give another."
    raise ProgramError(
        f"there is no chat template of the name {quote(spec)}: {hint} Known are "
        f"{', '.join(map(quote, names))}; a path of a file and Jinja itself are taken too, and "
        "register_chat_template adds names."
    )


def _is_jinja(text: str) -> bool:
    return "{{" in text or "{%" in text or "\n" in text


def _is_file(spec: str) -> bool:
    try:
        return Path(spec).is_file()
    except (OSError, ValueError):
        return False


def _checked_length(source: str, what: str) -> None:
    if len(source) > MAX_TEMPLATE_CHARACTERS:
        raise ProgramError(
            f"{what} has {len(source):,} characters: at most {MAX_TEMPLATE_CHARACTERS:,} are "
            "allowed; give a shorter one."
        )


def _from_file(path: Path) -> str:
    where = f"the chat template's file {quote(str(path))}"
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe or a device has no end
            raise OSError("no regular file")
        if status.st_size > MAX_FILE_BYTES:
            raise ProgramError(
                f"{where} has {status.st_size:,} bytes: at most {MAX_FILE_BYTES:,} are read; "
                "give the file of the template alone."
            )
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ProgramError(
            f"{where} cannot be read ({type(error).__name__}: {quote(str(error))}): give the path "
            "of a text file in UTF-8, a name, or Jinja itself."
        ) from error
    if path.suffix == ".json":
        text = _from_json(text, where)
    _checked_length(text, where)
    return text


def _from_json(text: str, where: str) -> str:
    try:
        holder = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProgramError(f"{where} is no valid JSON ({quote(str(error))}).") from error
    found = holder.get("chat_template") if isinstance(holder, dict) else None
    if isinstance(found, list):  # several by name; transformers takes the one called "default"
        named = [entry for entry in found if isinstance(entry, dict)]
        chosen = [entry for entry in named if entry.get("name") == "default"]
        found = chosen[0].get("template") if chosen else None
    if not isinstance(found, str):
        raise ProgramError(
            f'{where} has no text under "chat_template": give the tokenizer_config.json of a chat '
            "model, or a file of Jinja."
        )
    return found

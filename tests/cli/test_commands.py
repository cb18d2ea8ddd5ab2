"""The other commands: help as documented, findings, prompts, completion, chat, doctor, models."""

import argparse
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lmlang as lm
from lmlang.cli import COMMANDS, bench, chat, completion, doctor, models, parser_of, terminal
from lmlang.cli.command import EXIT_CODES
from lmlang.kernels import forms
from lmlang.testing import ScriptedBackend
from tests.tiny import tiny_model, tiny_shape, write_tiny_gguf

ROOT = Path(__file__).parent.parent.parent


def test_the_page_is_what_the_parsers_say():
    place = ROOT / "docs" / "generate_cli.py"
    spec = importlib.util.spec_from_file_location("generate_cli", place)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    assert made.page() == page, "run: python docs/generate_cli.py"
    for code in EXIT_CODES:
        assert f"| {code} |" in page


@pytest.mark.parametrize("columns", ["", "0", "1", "40", "nonsense", "500"])
def test_every_command_has_help_at_any_width(lmlang, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("NO_COLOR", "1")
    for command in COMMANDS:
        ran = lmlang(command.name, "--help")
        assert ran.code == 0
        assert "\x1b" not in ran.out
        assert ran.err == ""
    assert lmlang("--help").code == 0
    bare = lmlang()
    assert (bare.code, bare.out) == (2, "")
    assert "run a program, once or on rows of a file" in " ".join(bare.err.split())
    assert lmlang("nonsense").code == 2


def test_options_have_a_word_about_each_and_are_never_shortened(lmlang):
    words = next(a for a in parser_of()._actions if isinstance(a, argparse._SubParsersAction))
    assert set(words.choices) == {command.name for command in COMMANDS}
    for parser in words.choices.values():
        assert not parser.allow_abbrev
        for action in parser._actions:
            assert action.help


def test_the_command_line_loads_neither_torch_nor_much(program):
    script = (
        "import sys, lmlang.cli as c; c.parser_of(); "
        "sys.exit({'torch', 'transformers', 'pydantic', 'numpy'} & sys.modules.keys() != set())"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


LOOSE = """
    import lmlang as lm

    @lm.function
    def loose(s, text):
        s += "Text: " + text + lm.gen("a", max_tokens=2) + lm.gen("a", max_tokens=2)

    @lm.function
    def fine(s, text):
        s += "Text: " + text + "\\nMood:" + lm.gen("mood", max_tokens=2)
"""


def test_check_prints_findings_and_its_code_says_whether_there_are_warnings(lmlang, program):
    path = program(LOOSE, "loose.py")
    ran = lmlang("check", path)
    assert (ran.code, ran.err) == (3, "")
    assert ran.out.startswith(f"{path}:6: LM101 warning: 'a' is set here")
    assert lmlang("check", f"{path}:fine") == (0, "", "")
    (line,) = lmlang("check", f"{path}:loose", "--json").out.splitlines()
    assert json.loads(line)["code"] == "LM101"
    assert lmlang("check", program("x = 1\n", "none.py")).code == 1


def test_preview_and_trace_show_what_would_be_asked(lmlang, program):
    path = program()
    ran = lmlang("preview", f"{path}:capital", "--country", "Peru", "--loud")
    assert ran.code == 0
    text = "In 2000 (dry, True) the capital of Peru is "
    assert ran.out.startswith(f"prompt ({len(text)} tokens):\n{text}\nthen:\n")
    ran = lmlang("trace", f"{path}:capital")
    assert ran.code == 0
    assert lm.parse_program(ran.out).name == "capital"
    assert "%2 = arg %1 country" in ran.out
    assert "from the body" not in ran.out


# ---------------------------------------------------------------------------- completion


def completed(lmlang, *words):
    ran = lmlang(completion.COMPLETE, "--", *words)
    assert (ran.code, ran.err) == (0, "")
    return [line.split("\t")[0] for line in ran.out.splitlines()]


def test_completion_knows_commands_options_choices_and_programs(lmlang, program):
    path = program("import nothing_like_this\n" + LOOSE.replace("\n    ", "\n"), "loose.py")
    assert completed(lmlang, "") == [command.name for command in COMMANDS]
    assert completed(lmlang, "ch") == ["check", "chat"]
    assert completed(lmlang, "run", "--rows-") == ["--rows-format"]
    assert completed(lmlang, "run", "x.py", "--rows-format", "") == ["csv", "tsv", "jsonl"]
    assert completed(lmlang, "run", "--seed", "") == []
    assert completed(lmlang, "completion", "") == ["bash", "fish", "zsh"]
    assert completed(lmlang, "run", str(path)) == [f"{path}:loose", f"{path}:fine"]
    assert completed(lmlang, "check", f"{path}:f") == [f"{path}:fine"]
    assert completed(lmlang, "check", "none.py:") == []
    assert completed(lmlang, "demo", "t") == ["triage", "tags", "twentyfour", "template"]
    asks = program(
        "@lm.function\ndef ask(s, country, *, se, seed=1, in_short=True):\n    pass\n", "ask.py"
    )
    assert completed(lmlang, "run", f"{asks}:ask", "--")[-3:] == ["--country", "--se", "--in-short"]
    assert completed(lmlang, "run", str(asks), "--in") == ["--in-short"]
    assert completed(lmlang, "run", str(path), "--co") == []
    assert completed(lmlang, "nonsense", "") == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_with_it(program, tmp_path):
    path = program(LOOSE, "loose.py")
    asks = "".join(
        f"COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _lmlang; "
        'echo "${COMPREPLY[*]}"\n'
        for words in (
            "lmlang che",
            "lmlang run --rows-format c",
            f"lmlang check {path} ':' f",
            "lmlang run nothing",
        )
    )
    script = f'eval "$(lmlang completion bash)"\n{asks}'
    told = subprocess.run(
        ["bash", "-c", script],
        env=_with_lmlang(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.splitlines() == ["check", "csv", "fine", ""]
    assert told.stderr == ""


ZSH = """
compdef() { : }
_describe() { print -rl -- ${(P)2} }
_files() { print FILES }
eval "$(lmlang completion zsh)"
words=(lmlang che); CURRENT=2; _lmlang
words=(lmlang check PATH:f); CURRENT=3; _lmlang
words=(lmlang run nothing); CURRENT=3; _lmlang
"""
FISH = """
lmlang completion fish | source
complete -C "lmlang che"
complete -C "lmlang check PATH:f"
"""


@pytest.mark.parametrize(
    ("shell", "flag", "script", "told"),
    [
        ("zsh", "-f", ZSH, ["check:find what is likely wrong in programs", "TARGET", "FILES"]),
        (
            "fish",
            "--no-config",
            FISH,
            ["check\tfind what is likely wrong in programs", "PATH:fine"],
        ),
    ],
)
def test_other_shells_complete_with_it(program, tmp_path, shell, flag, script, told):
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    path = str(program(LOOSE, "loose.py"))
    target = f"{path}:fine".replace(":", r"\:") + f":{path}:fine"
    ran = subprocess.run(
        [shell, flag, "-c", script.replace("PATH", path)],
        env=_with_lmlang(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    expected = [line.replace("TARGET", target).replace("PATH", path) for line in told]
    assert ran.stdout.splitlines() == expected


def _with_lmlang(folder):
    """An environment in which ``lmlang`` is this one."""
    command = folder / "lmlang"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m lmlang "$@"\n')
    command.chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(folder)}


# ---------------------------------------------------------------------------- chat


def options(**given):
    return argparse.Namespace(**{"max_tokens": 20, "temperature": 0.0, "seed": 1, **given})


def test_turns_of_a_chat_share_their_beginning_and_an_answer_can_be_stopped():
    pieces: list[str] = []

    def stop_at_third(piece):
        pieces.append(piece)
        if len(pieces) == 3:
            raise KeyboardInterrupt

    with lm.Runtime.over(*tiny_model(max_positions=2_048), kv_tokens=4_096) as runtime:
        with lm.use(runtime):
            talk = chat.Conversation("hello the world", options())
            said: list[str] = []
            talk.ask("hello", said.append)
            with pytest.raises(KeyboardInterrupt):
                talk.ask("more", stop_at_third)
            assert runtime.stats().running == 0
            runtime.reset_stats()
            talk.ask("and on", said.append)
            messages = talk._state.messages()
        first = "".join(said)
        assert [m["role"] for m in messages] == ["system", *["user", "assistant"] * 3]
        assert messages[4]["content"] == "".join(pieces)
        assert first == messages[2]["content"] + messages[6]["content"]
        stats = runtime.stats()
        assert stats.cached_tokens > stats.prompt_tokens / 2


def test_a_turn_that_fails_is_as_if_it_had_not_been_asked():
    with lm.Runtime.over(*tiny_model(max_positions=128), kv_tokens=512) as runtime, lm.use(runtime):
        talk = chat.Conversation(None, options(max_tokens=8))
        with pytest.raises(lm.ContextOverflow):
            talk.ask("hello the world " * 100, lambda piece: None)
        talk.ask("hello", lambda piece: None)
        assert [m["role"] for m in talk._state.messages()][-2:] == ["user", "assistant"]


def test_questions_may_come_from_a_pipe_and_answers_alone_go_out(lmlang, monkeypatch):
    monkeypatch.setattr(
        sys, "stdin", io.StringIO("hello\n\n/usage\n/nonsense\n/system be brief\nbye\n/exit\nno\n")
    )
    with ScriptedBackend(["Hi\x1b[2J!", "Bye."]) as backend, lm.use(backend):
        ran = lmlang("chat", "--seed", 1)
        prompts = [backend.render(request.prompt) for request in backend.requests]
    assert ran.code == 0
    assert ran.out == "Hi[2J!\nBye.\n"
    assert re.search(r"[1-9][0-9]* prompt tokens \(0 cached\), [1-9][0-9]* generated", ran.err)
    assert "/help" in ran.err
    assert "be brief" not in prompts[0]
    assert "be brief" in prompts[1]
    assert "hello" not in prompts[1]


def test_a_question_that_fails_is_told_in_a_line_and_in_the_exit_code(lmlang, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\nagain\n"))
    failing = ScriptedBackend(["unread", "Hi."], fail_at=0, error=lm.BackendError("it is away."))
    with failing as backend, lm.use(backend):
        ran = lmlang("chat")
    assert (ran.code, ran.err) == (3, "lmlang chat: it is away.\n")
    assert ran.out.endswith("\n")
    assert len(ran.out) > 1


# ---------------------------------------------------------------------------- this machine


def test_doctor_tells_what_is_slow_and_why(lmlang, monkeypatch, tmp_path):
    monkeypatch.setenv("LMLANG_KERNELS", "reference")
    monkeypatch.setenv("LMLANG_CACHE", str(tmp_path))
    ran = lmlang("doctor")
    assert ran.err == ""
    names = {line[2:].split("  ")[0].strip() for line in ran.out.splitlines()} - {""}
    assert names >= {"lmlang", "python", "torch", "device", "memory", "cache folder", "tqdm"}
    assert ran.code == 3
    assert "! kernels          reference, by LMLANG_KERNELS: many times slower" in ran.out


def test_a_variable_that_names_no_model_is_told_as_that(lmlang, monkeypatch):
    monkeypatch.setenv("LMLANG_MODEL", "none.gguf")
    ran = lmlang("doctor")
    assert ran.code == 3
    assert "! embedded model   LMLANG_MODEL='none.gguf' is no file" in ran.out
    assert "unset LMLANG_MODEL, or name a file." in ran.out
    assert "(embedded)        LMLANG_MODEL='none.gguf' is no file" in lmlang("models").out


def test_doctor_tells_kernels_that_there_are_not(lmlang, monkeypatch):
    forms._chosen.cache_clear()
    monkeypatch.setenv("LMLANG_KERNELS", "fast")
    ran = lmlang("doctor")
    assert ran.code == 3
    assert "! kernels          LMLANG_KERNELS='fast' means nothing" in ran.out


def test_doctor_names_extras_that_there_are():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = project.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    there = re.findall(r"^(\w+) = \[", extras, re.MULTILINE)
    assert {extra for extra, _ in doctor.OPTIONAL.values()} <= set(there)


def test_doctor_goes_on_where_a_part_is_broken(lmlang, monkeypatch):
    def _torch():
        raise OSError("libtorch.so is broken")

    monkeypatch.setattr(doctor, "PARTS", (_torch, doctor._python))
    ran = lmlang("doctor")
    assert ran.code == 3
    assert ran.out.startswith("! torch            OSError: libtorch.so is broken\n")
    assert "  lmlang" in ran.out


def test_models_lists_the_embedded_one_and_those_of_the_hub(lmlang, monkeypatch, tmp_path):
    snapshot = tmp_path / "models--owner--some--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "model.safetensors").write_bytes(bytes(2_000_000))
    (tmp_path / "models--owner--broken" / "snapshots" / "abc").mkdir(parents=True)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    ran = lmlang("models")
    head, embedded, other = ran.out.splitlines()
    assert head.split() == ["NAME", "SIZE", "PLACE"]
    assert embedded.startswith("(embedded)")
    assert other.split(maxsplit=3)[:3] == ["owner/some--name", "2.0", "MB"]
    assert lmlang("fetch-model", "not a name").code == 1


def test_sizes_read_well():
    assert [models.size(n) for n in (0, 999, 1_500, 98_362_432, 5e12)] == [
        "0 B", "999 B", "1.5 kB", "98 MB", "5.0 TB",
    ]  # fmt: skip


def test_demos_are_listed_and_a_wrong_name_is_told(lmlang):
    ran = lmlang("demo", "--list")
    assert "twentyfour" in ran.out
    ran = lmlang("demo", "triaje")
    assert (ran.code, ran.out) == (1, "")
    assert "did you mean triage?" in ran.err


def test_what_a_terminal_would_act_on_is_left_out():
    assert terminal.shown("a\tb\nc\x00\x1b]0;x\x07\ud800") == "a\tb\nc]0;x"


def test_bench_prints_ratios_of_runs_by_turns(lmlang, monkeypatch, tmp_path):
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path, tiny_shape(max_positions=2_048))
    monkeypatch.setattr(bench, "REPEATS", 1)
    monkeypatch.setattr(bench, "COUNTRIES", bench.COUNTRIES[:2])
    ran = lmlang("bench", "--model", path, "--json")
    assert (ran.code, ran.err) == (0, "")
    ratios = json.loads(ran.out)["ratios"]
    assert len(ratios) == 3
    for found in ratios.values():
        assert len(found["slower"]) == len(found["faster"]) == 1
        assert found["ratio"] == found["slower"][0] / found["faster"][0] > 0
    head, *lines = lmlang("bench", "--model", path).out.splitlines()
    assert head.startswith("tiny.gguf; ")
    assert [line.split()[0][-1] for line in lines] == ["x"] * 3

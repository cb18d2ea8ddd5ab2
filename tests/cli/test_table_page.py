"""The page from a table to records: its files and commands, on the embedded model, as it says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

PAGE = (Path(__file__).parent.parent.parent / "docs/how-to/table.md").read_text(encoding="utf-8")


def alike(said: str, expected: str) -> bool:
    pattern = ".*".join(map(re.escape, expected.split("…")))
    return re.fullmatch(pattern, said, re.DOTALL) is not None


def test_files_and_commands_do_what_the_page_says(lmlang, program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("people.py", "people.csv"):
        (text,) = re.findall(rf'```\w+ title="{name}"\n(.*?)```', PAGE, re.DOTALL)
        Path(name).write_text(text, encoding="utf-8")
    commands = re.findall(r"```sh\n(lmlang .*?)\n```\n(?:```text\n(.*?)```)?", PAGE, re.DOTALL)
    assert len(commands) == 7
    codes = []
    for command, expected in commands:
        word, *arguments = shlex.split(command)
        assert word == "lmlang"
        ran = lmlang(*arguments)
        codes.append(ran.code)
        assert alike(ran.out + ran.err, expected), f"{command} printed\n{ran.out}{ran.err}"
    assert codes == [0, 0, 0, 2, 3, 3, 3]
    (records,) = re.findall(r'```csv title="records.csv"\n(.*?)```', PAGE, re.DOTALL)
    found = Path("records.csv").read_bytes().decode().replace("\r\n", "\n")
    assert alike(found, records), found

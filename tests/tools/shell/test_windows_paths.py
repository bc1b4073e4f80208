"""Paths of Windows in a text, which a shell would take apart."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.tools.read import TEXT_ALONE, read
from gpu_mem_calculator.tools.shell.tokens import with_windows_paths

GGUF = "Qwen2.5-7B-Instruct-Q4_K_M.gguf"


@pytest.mark.parametrize(
    "path",
    [
        rf"C:\Users\me\{GGUF}",
        rf".\models\{GGUF}",
        rf"..\{GGUF}",
        rf"\\nas\share\{GGUF}",
        rf"models\qwen\{GGUF}",
        rf'"C:\My Models\all of\them here\{GGUF}"',
    ],
)
@pytest.mark.parametrize("front", ["", "#!/bin/bash\n"])
def test_a_path_keeps_its_backslashes(front: str, path: str) -> None:
    """In a line that is pasted, and in a script."""
    found = read(f"{front}llama-server -m {path} -c 4096", TEXT_ALONE)
    plain = path.strip('"')
    assert found.run["model"]["name"] == "Qwen2.5-7B-Instruct"
    assert any(one.startswith(f"{plain} is Qwen2.5-7B-Instruct") for one in found.notes)


@pytest.mark.parametrize(
    "text",
    [
        r"trl sft --model\_name\_or\_path gpt2 --per\_device\_train\_batch\_size 1",
        "trl sft \\\n  --model_name_or_path gpt2",
        r"echo a\ b \$HOME \"x\" 's/\d/x/' foo\.bar\.baz",
        r"sed -e s/\w\w/x/",
    ],
)
def test_what_is_no_path_is_the_shells(text: str) -> None:
    """Markdown's underscores, lines that go on, and what a shell escapes."""
    assert with_windows_paths(text) == text


def test_the_end_of_a_folder_is_kept() -> None:
    """Where an option is behind it; before a line break it goes on there."""
    assert with_windows_paths("a -o C:\\out\\ -x") == "a -o C:\\\\out\\\\ -x"
    assert with_windows_paths("a -o C:\\out \\\n -x") == "a -o C:\\\\out \\\n -x"

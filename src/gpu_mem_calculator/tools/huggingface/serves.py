"""Scripts that serve or generate: they are refused, and not taken for a training."""

from __future__ import annotations

import re

from ..reading.command import Command
from ..reading.tools import UnknownToolError
from ..translation.arguments import tables

NAME = re.compile(tables(__file__)["name"])
TRAINS = frozenset(tables(__file__)["trains"])  # options that a script has only if it trains
OF_FILE = "gguf"  # in an option's name: weights of llama.cpp's form, which nothing trains


def refuse_server(command: Command) -> None:
    """Raise where a script serves or generates, by its name or by a GGUF file that it takes, and
    has no option of a training.
    """
    given = {word.lstrip("-").partition("=")[0] for word in command.words if word[:1] == "-"}
    gguf = any(OF_FILE in one for one in given)
    if given & TRAINS or not (gguf or NAME.fullmatch(command.program)):
        return
    folder = command.words[0].replace("\\", "/").rpartition("/")[0].rpartition("/")[2]
    name = f"{folder}/{command.program}".lstrip("./")
    why = "takes a GGUF file" if gguf else "serves or generates, by its name"
    use = "gpu-mem-calc infer MODEL estimates servers that are known"
    if gguf:
        use = "check llama-server -m FILE.gguf --cpu-moe, whose experts stay on the host"
    raise UnknownToolError(f"{name} {why}, and is not modelled; {use}")

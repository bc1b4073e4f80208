"""What docs/models.md shows, run against a hub and a bucket on this machine.

`python -m tests.catalog.hub.document` writes the page's outputs anew.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from gpu_mem_calculator import catalog
from gpu_mem_calculator.catalog.hub import sources
from gpu_mem_calculator.cli.main import main
from tests.catalog.hub.buckets import bucket
from tests.catalog.hub.models import GGUF, ONE, OWN_CODE
from tests.catalog.hub.servers import hub
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "models.md"
BLOCK = re.compile(r"(<!-- [a-z]+ -->\n```console\n)(.*?)(```\n)", re.DOTALL)
SHOWN = {"hub": "http://127.0.0.1:8000", "storage": "http://127.0.0.1:9000"}
TOKEN = "hf_of_somebody"


@contextmanager
def servers() -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """The environment of the page's commands, and what addresses are called in it."""
    row = catalog.find("index", "llama3.1-70b")
    assert row is not None
    llama = {"config.json": json.dumps(catalog.row_config(row)).encode()}
    models = {
        "owner/llama": llama,
        "owner/llama@v1.0": llama,
        "owner/gated": ONE,
        "owner/gguf": GGUF,
        "owner/own-code": OWN_CODE,
    }
    files = {f"models/llama/{file}": data for file, data in llama.items()}
    with hub(models, TOKEN, ["owner/gated"]) as there, bucket("default-bucket", files) as kept:
        names = {there.address: SHOWN["hub"], kept.endpoint: SHOWN["storage"]}
        yield {**there.environment, **kept.environment}, names


def shown(command: str, environment: Mapping[str, str], names: Mapping[str, str]) -> str:
    """What a command prints, as the page has it."""
    words = shlex.split(command)
    settings = dict(word.split("=", 1) for word in words[: words.index("gpu-mem-calc")])
    before = dict(os.environ)
    for name in [one for one in os.environ if one.startswith(("HF_", "AWS_"))]:
        del os.environ[name]
    os.environ.update({"HF_HOME": "no-such-folder", **environment, **settings})
    heard, printed = io.StringIO(), io.StringIO()
    try:
        sources.forget()
        with contextlib.redirect_stderr(heard), contextlib.redirect_stdout(printed):
            main(words[words.index("gpu-mem-calc") + 1 :])
    finally:
        os.environ.clear()
        os.environ.update(before)
    text = heard.getvalue() + printed.getvalue()
    for real, public in names.items():
        text = text.replace(real, public)
    return re.sub(r" +$", "", text, flags=re.MULTILINE)


def page() -> str:
    """The page with every block's output as it is now."""
    with servers() as (environment, names):

        def rewrite(block: re.Match[str]) -> str:
            output = ""
            for line in block[2].splitlines():
                if line.startswith("$ "):
                    is_export = line.startswith("$ export")  # the environment has it
                    output += f"{line}\n" + (
                        "" if is_export else shown(line[2:], environment, names)
                    )
            return f"{block[1]}{output}{block[3]}"

        return BLOCK.sub(rewrite, PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

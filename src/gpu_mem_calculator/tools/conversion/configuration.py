"""Whether a file of a repository says what a training run or a server takes: by its name and its
keys, before anything that it names is opened.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...runfile.file_kinds import BESIDE, is_model_config, is_run_file
from ...runfile.sections import SECTIONS
from ...runfile.text.errors import InputError
from ...runfile.text.files import MOST_SLOW_BYTES
from ...runfile.text.text_data import parse_text
from ..deepspeed.detect import is_deepspeed
from ..manifests.read import is_manifest
from ..reading import MODELFILE, SCRIPTS
from ..reading.tools import file_format
from ..skypilot.read import is_task
from .source import ENDINGS, YAML


def may_be_configuration(path: str) -> bool:
    """Whether a file of this name can be one."""
    return path.lower().endswith((*ENDINGS, *SCRIPTS)) or _is_modelfile(path)


def why_none(path: str, text: str) -> str:
    """Why a file is no configuration; empty where it is one, or where only reading it tells."""
    if path.lower().endswith(SCRIPTS) or _is_modelfile(path):
        return ""
    ending = next((one for one in ENDINGS if path.lower().endswith(one)), "")
    try:
        data = _first_document(text) if ending in YAML else parse_text(text, ending, path)
    except InputError as error:
        return error.problems[0].removeprefix(f"{path}: ")
    if is_task(data) or is_manifest(data) or file_format(data) is not None:
        return ""
    if is_model_config(data):
        return "a model's config.json, which says nothing of a run"
    if is_deepspeed(data):
        return "DeepSpeed's JSON, which names no model"
    if not is_run_file(data):
        return "no file of a tool that is known"
    assert isinstance(data, Mapping)
    others = [str(key) for key in data if key not in {*SECTIONS, *BESIDE}]
    return f"no run file has {others[0]!r}, and no tool that is known" if others else ""


def _is_modelfile(path: str) -> bool:
    return path.rpartition("/")[2].startswith(MODELFILE)


def _first_document(text: str) -> object:
    """The first of a YAML file's documents."""
    from ...runfile.text.yaml_text import parse_yaml_documents

    if len(text) > MOST_SLOW_BYTES:
        raise InputError(f"it is larger than {MOST_SLOW_BYTES:,} bytes")
    try:
        return next(iter(parse_yaml_documents(text)), None)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not valid YAML, {str(error).splitlines()[0]}") from None

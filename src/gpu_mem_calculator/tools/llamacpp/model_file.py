"""The model and the quantization that the name of a GGUF file, or of its repository, says."""

from __future__ import annotations

import re

from msgspec import Struct
from msgspec.structs import replace

from ...catalog.model_names import spelled
from ...run.weights.gguf import file_type
from ...runfile.find_model.named_preset import meant_preset

# A file type in a name, after a separator; `UD-` marks Unsloth's own mixes.
TYPE = re.compile(
    r"(?:^|[-._:])(ud[-_])?((?:i?q|tq)\d(?:_[a-z0-9]+){0,2}|bf16|fp?16|fp?32|mxfp4(?:_moe)?)"
    r"(?=$|[-._])",
    re.IGNORECASE,
)
PART = re.compile(r"-\d{5}-of-\d{5}$")
ENDING = re.compile(r"(?:[-._](?:gguf|qat))+$", re.IGNORECASE)
GENERAL = ("", "model", "models", "ggml-model", "gguf", "weights")  # names that say nothing
DEFAULT = "Q4_K_M"  # common/download.cpp: the first choice of -hf without a quantization
SIMILAR = {"Q8_K": "Q8_0", "FP16": "F16", "FP32": "F32"}


class FileName(Struct, frozen=True):
    """What a file's name says: the model, and the type of its weights (empty: nothing).

    - `similar`: the written type, where it is a publisher's own mix and `quantization` is
      llama.cpp's nearest one
    """

    model: str
    quantization: str = ""
    similar: str = ""

    @property
    def is_known(self) -> bool:
        """Whether the catalogue has the model, or one of its size."""
        return spelled(self.model) is not None or meant_preset(self.model) is not None


def read_file_name(path: str) -> FileName:
    """The model of a path; a folder's name counts where the file's says nothing."""
    parts = [part for part in re.split(r"[\\/]", path) if part not in (".", "..")]
    last = re.sub(r"\.(gguf|bin)$", "", parts[-1] if parts else "", flags=re.IGNORECASE)
    found = read_model_name(PART.sub("", last))
    for folder in reversed(parts[:-1]):
        if found.model.lower() not in GENERAL:
            break
        above = read_model_name(folder)
        kind = found if found.quantization else above
        found = replace(kind, model=above.model)
    return found


def read_model_name(name: str) -> FileName:
    """The model and the file type in a name such as `Llama-3.2-1B-Instruct-Q4_K_M-GGUF`."""
    plain = ENDING.sub("", name)
    matches = [one for one in TYPE.finditer(plain) if known_type(one[2])]
    if not matches:
        return FileName(plain)
    match = matches[-1]
    written, kind = f"{match[1] or ''}{match[2]}".upper(), known_type(match[2])
    is_own = bool(match[1]) or (file_type(match[2]) is None and match[2].upper() not in SIMILAR)
    model = ENDING.sub("", plain[: match.start()])
    return FileName(model, kind, written if is_own else "")


def known_type(text: str) -> str:
    """llama.cpp's file type of a text, or the nearest one of a longer name; empty for none."""
    words = text.upper().split("_")
    for count in range(len(words), 0, -1):
        name = "_".join(words[:count])
        found = file_type(SIMILAR.get(name, name))
        if found is not None:
            return found
    return ""

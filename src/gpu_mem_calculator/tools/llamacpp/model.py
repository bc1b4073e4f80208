"""The model that a command of llama.cpp loads: a GGUF file, or a repository of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ... import catalog
from ...catalog.model_names import spelled
from ...runfile.config import ModelConfig
from ...runfile.find_model.model_source import find_model
from ...runfile.text.errors import InputError
from ..reading.command import Command
from ..reading.reading import Limit, Reading
from ..translation.arguments import tables
from .model_file import DEFAULT, FileName, known_type, read_file_name, read_model_name

# Presets of llama-server, with the options that they set (common/arg.cpp).
PRESETS: Mapping[str, Mapping[str, Any]] = tables(__file__)["presets"]
DRAFTS = ("fim-qwen-7b-spec", "fim-qwen-14b-spec")
MIX = "is a publisher's own mix of types; {} is estimated, and the header of the file says more"
PROJECTOR = "the projector for images, which is loaded with the model, is not counted"
ROUTER = "it names no model and would load those that are asked for; add -m FILE.gguf or -hf NAME"
SIZES = ("image_size", "patch_size", "num_attention_heads")  # of a vision tower


def with_presets(reading: Reading, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options with those that a preset such as --gpt-oss-20b-default sets."""
    values = dict(given)
    for name in [one for one in PRESETS if values.pop(one, False)]:
        values = {**PRESETS[name]} | values
        if name in DRAFTS:
            why = "its draft model of 0.5B is not counted"
            reading.limits.append(Limit(key=f"--{name}", why=why, could="more"))
    return values


def add_model(reading: Reading, given: Mapping[str, Any], command: Command) -> None:
    """Add the model of -m, -hf, -mu or -dr, and its quantization where the file is not here."""
    path, repository = given.get("model"), given.get("hf-repo")
    if path is not None and not repository and not given.get("model-url"):
        if command.files.exists(str(path)):
            reading.run["model"] = {"name": str(command.files.path(str(path), "-m"))}
            return
        add_named_file(reading, str(path), read_file_name(str(path)), "-m")
    elif repository:
        _add_repository(reading, str(repository), given.get("hf-file"))
    elif given.get("model-url"):
        address = str(given["model-url"])
        add_named_file(reading, address, read_file_name(address), "-mu")
    elif given.get("docker-repo"):
        name, _, tag = str(given["docker-repo"]).partition(":")
        text = name.rpartition("/")[2] + (f"-{tag}" if tag not in ("", "latest") else "")
        add_named_file(reading, str(given["docker-repo"]), read_model_name(text), "-dr")
    else:
        raise InputError(f"{reading.tool}: {ROUTER}")


def _add_repository(reading: Reading, text: str, file: Any) -> None:
    """The model of -hf OWNER/MODEL[:TYPE]; a file of it says more than its own name."""
    name, _, tag = text.partition(":")
    found = read_model_name(name.rpartition("/")[2])
    kind = read_file_name(str(file)) if file else read_model_name(f"x-{tag}") if tag else found
    if tag and not known_type(tag.upper().removeprefix("UD-")) and not file:
        why = f"{tag!r} is no quantization of llama.cpp; the repository's own file decides"
        reading.limits.append(Limit(key=f"-hf={text}", why=why))
        kind = found
    if not kind.quantization:
        kind = FileName("", DEFAULT)
        reading.assumed.append(f"{name} in {DEFAULT}, which -hf takes before Q8_0")
    whole = FileName(found.model, kind.quantization, kind.similar)
    if not whole.is_known and file:
        reading.run["model"] = {"name": f"{name}/{file}"}
    else:
        add_named(reading, whole if whole.is_known else replace(whole, model=name), f"-hf={text}")


def add_named_file(reading: Reading, path: str, found: FileName, option: str) -> None:
    """A model by the name of a file that is not here."""
    if not found.model:
        raise InputError(f"{option} {path}: the file is not here, and its name says no model")
    if not found.quantization:
        why = f"the file is not here and its name says no quantization; {DEFAULT} is estimated"
        reading.limits.append(Limit(key=f"{option}={path}", why=why))
        found = FileName(found.model, DEFAULT)
    if found.is_known:
        said = f"{path} is {found.model} in {found.quantization}, by its name"
        reading.assumed.append(said)
    else:  # the sentence that refuses it has the whole path
        found = replace(found, model=path)
    add_named(reading, found, f"{option}={path}")


def add_named(reading: Reading, found: FileName, key: str) -> None:
    """Add a model by its name, and the type of its weights."""
    reading.run["model"] = {"name": found.model}
    reading.run["inference"]["quantization"] = found.quantization.lower()
    if found.similar:
        why = f"{found.similar} {MIX.format(found.quantization)}"
        reading.limits.append(Limit(key=key, why=why))


def add_projector(reading: Reading, given: Mapping[str, Any]) -> None:
    """A limit where a projector for images is loaded onto the GPU."""
    for name in ("mmproj-offload", "mmproj-auto"):
        if given.get(name) is False and not (name == "mmproj-auto" and "mmproj" in given):
            return
    if "mmproj-device" in given and given["mmproj-device"] in (None, "none"):
        return
    model = str(reading.run["model"]["name"])
    named = next((one for one in ("mmproj", "mmproj-url") if one in given), None)
    if named is not None:
        reading.limits.append(projector_limit(f"--{named}={given[named]}", model))
    elif "hf-repo" in given and sees_images(model):
        reading.limits.append(projector_limit(f"-hf={given['hf-repo']}", model))


def projector_limit(key: str, name: str) -> Limit:
    """The projector for images of a model, with its bound where images have one size: its weights
    in fp32, the widest type of its file, and the compute buffer of one image, which is mostly two
    tensors of attention scores in fp32 (llama.cpp b10586 tools/mtmd/clip.cpp).
    """
    row = spelled(name) or {}
    tower = catalog.row_config(row).get("vision_config", {}) if row else {}
    sizes: list[Any] = [tower.get(one) for one in SIZES]
    width = max((tower.get(one) or 0 for one in ("hidden_size", "intermediate_size")), default=0)
    most = None
    if all(isinstance(one, int) for one in sizes) and width:
        weights = find_model(ModelConfig(name=row["name"])).arch.tower_parameters
        patches, heads = (sizes[0] // sizes[1]) ** 2, sizes[2]
        most = 4 * weights + 8 * heads * patches**2 + 64 * patches * width
    return Limit(key=key, why=PROJECTOR, could="more", adds=most)


def sees_images(name: str) -> bool:
    """Whether the catalogue's model of this name has a part that reads images."""
    row = spelled(name)
    return row is not None and "vision_config" in catalog.row_config(row)

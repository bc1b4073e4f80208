"""The keys of Axolotl's schemas, from its source: `python -m tests.tools.axolotl.schema FOLDER`
prints what the tables lack and what they have too much. FOLDER is a checkout of Axolotl.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from gpu_mem_calculator.tools.axolotl.launch import FOLDER
from gpu_mem_calculator.tools.translation.arguments import argument_table

SCHEMAS, PLUGINS = "src/axolotl/utils/schemas/*.py", "src/axolotl/integrations/*/args.py"
# The classes that AxolotlInputConfig inherits from have their fields at the top of a file.
TOP = (
    *("AxolotlInputConfig", "ModelInputConfig", "ModelOutputConfig", "LoraConfig", "ReLoRAConfig"),
    *("JaggedLRConfig", "HyperparametersConfig", "WandbConfig", "MLFlowConfig", "CometConfig"),
    *("TrackioConfig", "OpenTelemetryConfig", "LISAConfig", "GradioConfig", "RayConfig"),
    *("MultiModalConfig", "RemappedParameters", "DeprecatedParameters"),
)
PLUGIN_TOP = ("Args", "SwanLabConfig")  # endings of the names of plugins' classes
PLUGIN_SECTIONS = ("CompressionArgs",)
SECTIONS = {"FSDPConfig": "fsdp", "TRLConfig": "trl", "VllmConfig": "vllm"}


def classes(folder: Path, pattern: str) -> Iterator[tuple[str, list[str]]]:
    """Each class of these files with the names of its fields."""
    for path in sorted(folder.glob(pattern)):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
                yield node.name, [ast.unparse(one.target) for one in fields]


def schema_keys(folder: Path) -> dict[str, list[str]]:
    """The keys at the top of a file, and of its sections, by the name of our table."""
    found: dict[str, list[str]] = {"keys": []}
    for name, fields in classes(folder, SCHEMAS):
        if name in TOP:
            found["keys"] += fields
        elif name in SECTIONS:
            plain = [one.removeprefix("fsdp_") for one in fields]
            found[SECTIONS[name]] = plain
    for name, fields in classes(folder, PLUGINS):
        if name.endswith(PLUGIN_TOP) and name not in PLUGIN_SECTIONS:
            found["keys"] += fields
    return {name: sorted(set(keys)) for name, keys in found.items()}


def main() -> None:
    """Print the difference between a checkout and the tables."""
    for name, keys in schema_keys(Path(sys.argv[1])).items():
        table = argument_table(name, FOLDER)
        print(name, len(keys), "missing:", [key for key in keys if key not in table])
        print(name, "not in the schema:", [key for key in table if key not in keys])


if __name__ == "__main__":
    main()

"""A log with its run as a measured run: what the program printed, by the keys of `measured`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...advice.diagnosis.part_rows import part_rows
from ...advice.diagnosis.parts import of_one_rank
from ...runfile.text.errors import InputError
from ...runfile.text.files import decode_printed, read_printed
from ...tools.logs.figure import Figure
from ...tools.logs.read import Log, read_log
from ...tools.logs.stated_run import stated_run
from ...tools.read import read

if TYPE_CHECKING:
    from ...tools.read import Anything, Asked

# Keys of `measured`, and where a log says them: the line's word and its figure. Of a server's the
# first counts, of those that TensorRT-LLM prints for its trial run and again the last, as in parts;
# of training the highest.
OF_SERVERS = {
    "weights_bytes": (("weights_loaded", "weights_bytes"), ("profiled", "weights_bytes")),
    "activation_bytes": (("profiled", "activations_bytes"), ("activations", "activations_bytes")),
    "non_torch_bytes": (("profiled", "non_torch_bytes"), ("non_torch", "non_torch_bytes")),
    "graph_bytes": (("graphs", "graphs_bytes"),),
    "kv_pool_bytes": (("kv_pool", "kv_pool_bytes"), ("profiled", "kv_pool_bytes")),
    "kv_tokens": (("kv_tokens", "tokens"), ("kv_pool", "tokens")),
}
PARTS = {"kv_pool_bytes": "pool", "kv_tokens": "kv_tokens"}  # what a row of parts.toml is of
PHASES = ("phase_memory", "step_memory")
OF_TRAINING = {
    "allocated_bytes": (
        *((one, "highest_bytes") for one in PHASES),
        ("summary_allocated", "highest_bytes"),
    ),
    "reserved_bytes": (
        *((one, "reserved_highest_bytes") for one in PHASES),
        ("summary_reserved", "highest_bytes"),
    ),
}


def row_of_log(path: str, run: Anything | Asked | None = None) -> dict[str, Any]:
    """A measured run of a log; its run is given, or stated in the log."""
    text = decode_printed(read_printed(path))
    log = read_log(text)
    if run is None:
        stated = stated_run(text, log)
        if stated.asked is None:
            why = f"; {stated.problems[0]}" if stated.problems else ""
            raise InputError(f"{path} does not state its run{why}; give --config, or -- COMMAND")
        run = stated.asked
    asked = read(run)
    asked.checked()
    serves = asked.run.get("inference") is not None
    measured = dict(_measured(log, serves=serves))
    if not measured:
        raise InputError(f"{path} has no figure that backtest compares")
    return {
        "id": re.sub(r"[^\w.-]+", "-", Path(path).stem) or "log",
        "group": str((asked.run.get("inference") or {}).get("engine") or "log"),
        "config": asked.run,
        "measured": measured,
        "environment": {"source": Path(path).name, **_versions(log)},
    }


def _measured(log: Log, *, serves: bool) -> Iterator[tuple[str, int]]:
    for key, places in (OF_SERVERS if serves else OF_TRAINING).items():
        lines = [
            (line, int(figure.value))
            for what, name in places
            for line in log.of(what)
            if isinstance(figure := line.figures.get(name), Figure)
        ]
        if not lines:
            continue
        if not serves:
            yield key, max(value for _, value in lines)
            continue
        first = [one for one in lines if one[0].what == lines[0][0].what]
        own = of_one_rank([line for line, _ in first])
        last = any(lines[0][0].tool in row.get("last", ()) for row in _rows(key))
        chosen = own[-1] if last else own[0]
        yield key, next(value for line, value in first if line is chosen)


def _rows(key: str) -> Iterator[Mapping[str, Any]]:
    """The rows of parts.toml of a key."""
    return (row for row in part_rows("server") if row["of"] == PARTS.get(key))


def _versions(log: Log) -> dict[str, str]:
    lines = log.of("server_version")
    return {lines[0].tool: str(lines[0].figures["version"])} if lines else {}

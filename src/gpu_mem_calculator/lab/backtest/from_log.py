"""A log with its run as a measured run: what the program printed, by the keys of `measured`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...runfile.text.errors import InputError
from ...runfile.text.files import decode_printed, read_printed
from ...tools.logs.figure import Figure
from ...tools.logs.read import Log, read_log
from ...tools.logs.stated_run import stated_run
from ...tools.read import read

if TYPE_CHECKING:
    from ...tools.read import Anything, Asked

# Keys of `measured`, and where a log says them: the line's word and its figure. Of a server's the
# first counts, which rank 0 prints; of training the highest.
OF_SERVERS = {
    "weights_bytes": (("weights_loaded", "weights_bytes"), ("profiled", "weights_bytes")),
    "activation_bytes": (("profiled", "activations_bytes"), ("activations", "activations_bytes")),
    "non_torch_bytes": (("profiled", "non_torch_bytes"), ("non_torch", "non_torch_bytes")),
    "graph_bytes": (("graphs", "graphs_bytes"),),
    "kv_pool_bytes": (("kv_pool", "kv_pool_bytes"), ("profiled", "kv_pool_bytes")),
    "kv_tokens": (("kv_tokens", "tokens"),),
}
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
        found = [
            int(figure.value)
            for what, name in places
            for line in log.of(what)
            if isinstance(figure := line.figures.get(name), Figure)
        ]
        if found:
            yield key, found[0] if serves else max(found)


def _versions(log: Log) -> dict[str, str]:
    lines = log.of("server_version")
    return {lines[0].tool: str(lines[0].figures["version"])} if lines else {}

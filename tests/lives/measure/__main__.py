"""Runs drawn lives on one machine with a card, several at once, each in processes of its own.

    python -m tests.lives.measure OUT --budget SECONDS [--workers 5] [--only PARTS] [--done FILE]

For each row: a process saves the checkpoint, a second one lives the life, a third one resumes it
where that was drawn. OUT gets a JSON line for each life; a failed one says how far it came.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tests.lives.models import Row, rough_needs

from . import engines, programs
from .host import Phases, cached_bytes, drop
from .inputs import save_checkpoint

HERE = Path(__file__).parents[1]
LONGEST = 170.0  # seconds of one process
GPU, HOST, DISK = 125e9, 100e9, 46e9  # what the lives of one time may take together
BASE = ("torch", "transformers", "accelerate", "torch.distributed.fsdp", "transformers.trainer")
AHEAD: tuple[tuple[str, ...], ...] = ((*BASE, "peft"), BASE, BASE[:2])
PACKAGES = ("torch", "transformers", "accelerate", "peft", "trl", "bitsandbytes", "deepspeed")


def fork(function: Callable[[], None]) -> int:
    """Run a function in a process of its own; returns its id."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        os.setpgid(0, 0)
        function()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def import_ahead() -> tuple[str, ...]:
    """Import what can be imported before a fork that uses the card."""

    def touch() -> None:
        torch = import_module("torch")
        if torch.backends.cuda.is_built():
            torch.zeros(1, device="cuda").item()

    def attempt(names: tuple[str, ...]) -> None:
        for name in names:
            import_module(name)
        _, code = os.waitpid(fork(touch), 0)
        if code:
            raise RuntimeError("no card after the fork")

    tries = {names: fork(lambda names=names: attempt(names)) for names in AHEAD}  # type: ignore[misc]
    good = [names for names, process in tries.items() if os.waitpid(process, 0)[1] == 0]
    for name in good[0]:
        import_module(name)
    return good[0]


def environment() -> Row:
    """The card, the versions."""
    torch = import_module("torch")
    found: Row = {"process_group": "none"}
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name(0)
    for name in PACKAGES:
        try:
            found[name] = version(name).partition("+")[0]
        except PackageNotFoundError:
            continue
    return found


def lives(row: Row) -> list[tuple[str, Callable[..., None]]]:
    """The ids of a row's lives, and what lives them."""
    config = row["config"]
    if "engine" in config:
        kind = config["engine"]["type"]
        return [(row["id"], engines.fsdp if kind == "fsdp" else engines.deepspeed)]
    if row["group"] == "lengths":
        return [(row["id"], programs.over_lengths)]
    found = [(row["id"], programs.whole)]
    if row["life"].get("resumed_in_a_second_process"):
        found.append((row["id"] + "-resumed", programs.resumed))
    return found


def as_run(row: Row, name: str) -> Row:
    """The run file with what the harness sets for every life."""
    config: Row = json.loads(json.dumps(row["config"]))
    if "program" in config:
        given: Row = {"save_strategy": "no", "max_steps": 3 if name.endswith("-resumed") else 2}
        if config["program"].get("quantization"):  # said to prepare_model_for_kbit_training, too
            given["gradient_checkpointing"] = False
        config["program"]["args"] = given | config["program"]["args"]
        if name.endswith("-resumed"):
            config["program"]["args"]["resume_from_checkpoint"] = "checkpoint-2"
    return config


def live(
    row: Row, name: str, body: Callable[..., None], work: Path, ahead: tuple[str, ...]
) -> None:
    """One life; its row is written even where it broke off."""
    begun = time.monotonic()
    sys.stdout = sys.stderr = open(work / f"{name}.log", "w")  # noqa: SIM115
    files = sorted((work / "model").glob("*.safetensors"))
    if row["life"]["checkpoint"]["page_cache"] == "cold":
        drop(files)
    sizes = [path.stat().st_size for path in files]
    stored = {"file_bytes": sizes, "cached_bytes": cached_bytes(files)}
    config = as_run(row, name)
    found: Row = {"id": name, "group": row["group"], "number": row["number"], "config": config}
    found["life"] = row["life"] | {"checkpoint": row["life"]["checkpoint"] | stored}
    phases = Phases(import_module("torch"))
    import_module("transformers").logging.set_verbosity_error()
    try:
        body(row | {"config": config}, work / "model", work / "out", phases)
    except BaseException as error:
        traceback.print_exc()
        found["failed"] = f"{type(error).__name__}: {error}"[:600]
        found["trace"] = traceback.format_exc()[-1500:]
    if phases.found:
        found["measured"] = phases.close()
    if phases.steps:
        found["measured"]["steps"] = phases.steps
    if "startup" in phases.found:
        found["measured"]["startup_bytes"] = phases.found["startup"]["peak_bytes"]
    found["phases"] = phases.found
    found["environment"] = environment() | {"imported_before_the_fork": list(ahead)}
    if "engine" in config:
        found["environment"]["process_group"] = "fake"
    elif variables := config["program"].pop("env", None):
        found["environment"]["alloc_conf"] = variables["PYTORCH_CUDA_ALLOC_CONF"]
    found["seconds"] = round(time.monotonic() - begun, 1)
    (work / f"{name}.json").write_text(json.dumps(found))


class Task:
    """A row on its way: its processes one after another, its folder."""

    def __init__(self, row: Row, root: Path, ahead: tuple[str, ...]) -> None:
        self.row, self.work = row, root / row["id"]
        self.needs = rough_needs(row)
        self.names = [name for name, _ in lives(row)]
        self.work.mkdir(parents=True)
        bodies: list[Callable[[], None]] = [lambda: save_checkpoint(row, self.work / "model")]
        for name, body in lives(row):
            bodies.append(lambda name=name, body=body: live(row, name, body, self.work, ahead))  # type: ignore[misc]
        self.bodies, self.process, self.since, self.codes = bodies, 0, 0.0, list[int]()
        self.advance()

    def advance(self) -> bool:
        """Start the next process; False at the end."""
        if not self.bodies or any(self.codes):
            return False
        self.process, self.since = fork(self.bodies.pop(0)), time.monotonic()
        return True

    def ended(self, late: bool) -> bool:
        """Whether the process that runs has ended; kills one that takes too long."""
        process, code = os.waitpid(self.process, os.WNOHANG)
        if not process and (late or time.monotonic() - self.since > LONGEST):
            os.killpg(self.process, signal.SIGKILL)
            process, code = os.waitpid(self.process, 0)
        if process:
            self.codes.append(code)
        return bool(process)

    def rows(self) -> list[Row]:
        """What the lives wrote, or that they did not."""
        found = []
        for name in self.names:
            path = self.work / f"{name}.json"
            if path.exists():
                found.append(json.loads(path.read_text()))
            else:
                log = self.work / f"{name}.log"
                tail = log.read_text()[-1500:] if log.exists() else ""
                found.append({"id": name, "failed": f"killed, codes {self.codes}", "trace": tail})
        return found


def fits(task: Row, running: list[Task]) -> bool:
    """Whether a row fits beside those that run."""
    needs = [one.needs for one in running] + [rough_needs(task)]
    totals = [sum(one) for one in zip(*needs, strict=True)]
    return not running or all(a <= b for a, b in zip(totals, (GPU, HOST, DISK), strict=True))


def run(rows: list[Row], args: Any, write: Callable[[Row], None]) -> None:
    """All rows within the budget."""
    begin = time.monotonic()
    ahead = import_ahead()
    print(f"imported ahead after {time.monotonic() - begin:.0f} s: {ahead}", flush=True)
    root = Path(tempfile.mkdtemp(prefix="lives-", dir=args.work))
    waiting = sorted(rows, key=lambda row: -rough_needs(row)[0])
    running = list[Task]()
    needed = any(row["config"].get("engine", {}).get("type") == "deepspeed" for row in rows)
    adam = fork(engines.compile_adam) if needed else 0
    while waiting or running:
        spent = time.monotonic() - begin
        if adam and os.waitpid(adam, os.WNOHANG)[0]:
            adam = 0
            print(f"{spent:6.1f} s  DeepSpeed's Adam is compiled", flush=True)
        if spent < args.budget - 45 and len(running) < args.workers:
            free = (
                one
                for one in waiting
                if fits(one, running) and not (adam and "deepspeed" in one["id"])
            )
            if chosen := next(free, None):
                waiting.remove(chosen)
                running.append(Task(chosen, root, ahead))
        for task in list(running):
            if task.ended(spent > args.budget) and not task.advance():
                running.remove(task)
                for row in task.rows():
                    write(row)
                    state = row.get("failed") or f"{row['seconds']} s"
                    print(f"{time.monotonic() - begin:6.1f} s  {row['id']:42s} {state}", flush=True)
                shutil.rmtree(task.work)
        if waiting and not running and spent > args.budget - 45:
            break
        time.sleep(0.02)
    if adam:
        os.killpg(adam, signal.SIGKILL)
    print("not run:", *(one["id"] for one in waiting), flush=True)


def main() -> None:
    """Read the drawn rows, and run those that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--budget", type=float, default=500.0)
    parser.add_argument("--workers", type=int, default=5)
    parser.add_argument("--only", default="", help="parts of ids, with commas")
    parser.add_argument("--done", default="", help="a file of results whose ids are left out")
    parser.add_argument("--drawn", default="drawn_lives.jsonl,drawn_lengths.jsonl")
    parser.add_argument("--work", default=None, help="a folder on a disk")
    args = parser.parse_args()
    done = Path(args.done).read_text() if args.done else ""
    texts = [(HERE / name).read_text() for name in args.drawn.split(",")]
    rows = [json.loads(line) for text in texts for line in text.splitlines()]
    parts = args.only.split(",")
    rows = [row for row in rows if any(part in row["id"] for part in parts)]
    rows = [row for row in rows if f'"{row["id"]}"' not in done]
    with args.out.open("a") as file:

        def write(row: Row) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()

        run(rows, args, write)


if __name__ == "__main__":
    main()

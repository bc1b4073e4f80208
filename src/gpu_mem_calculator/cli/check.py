"""Check whether a command fits before you start it: put this in front of it.

Reads the command and the files that it names. Runs nothing without --run.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import InputError, print_to_stderr
from ..core.fit_verdict import FITS, SHORT, UNSURE
from ..formats.reading.reading import Reading
from ..run.limits import Limit
from .fit_check import EXIT_CODES
from .output import show, write
from .parser import Parser, add_long, add_output, add_settings, memory, whole

EXAMPLES = """\
examples:
  gpu-mem-calc check vllm serve Qwen/Qwen3-32B --tensor-parallel-size 2
  gpu-mem-calc check --gpu h100 accelerate launch train.py --bf16 ...
  gpu-mem-calc check torchrun --nproc-per-node 8 pretrain_gpt.py ...
  gpu-mem-calc check axolotl train qlora.yml
  gpu-mem-calc check --run trl sft --config sft.yaml     (starts it if it fits)
  gpu-mem-calc check train.sh         gpu-mem-calc check deployment.yaml

exit codes: 0 it fits; 1 it does not; 2 bad input; 3 cannot tell: the command
starts no tool that is known, or something that is not modelled could decide"""

DOES_NOT_FIT, CANNOT_TELL = EXIT_CODES[SHORT], EXIT_CODES[UNSURE]
CARD = Limit(
    key="the card", why="nothing names it", settle="--gpu NAME, such as --gpu h100; see gpus"
)
# Options of `check` that have a value, and the key of the run file that each sets.
KEYS = {
    "--gpu": "hardware.gpu",
    "--gpu-mem": "hardware.gpu_memory_gb",
    "--gpus": "hardware.num_gpus",
}
WITH_VALUE = (*KEYS, "-g", "-m", "--set", "--format", "-f", "--output", "-o")


def arguments(parser: Parser) -> None:
    """Add the options of `check`."""
    parser.option("launch", "COMMAND", "the command, a script, or a tool's file", nargs="*")
    parser.option("--gpu", "NAME", "GPU model (default: this machine's)", dest=KEYS["--gpu"])
    text = "memory of one GPU in GB, as marketed"
    parser.option("-m --gpu-mem", "GB", text, memory, dest=KEYS["--gpu-mem"])
    text = "number of GPUs (default: as the command says)"
    parser.option("-g --gpus", "N", text, whole, dest=KEYS["--gpus"])
    add_settings(parser)
    parser.flag("--run", "become the command if it fits: its signals, its exit code")
    add_output(parser, "table", "json")
    add_long(parser)


def separated(words: Sequence[str]) -> list[str]:
    """The words with `--` between the options of `check` and the command."""
    place = 0
    while place < len(words) and words[place].startswith("-") and words[place] != "--":
        name, sign, _ = words[place].partition("=")
        place += 2 if name in WITH_VALUE and not sign else 1
    rest = list(words[place:])
    return [*words[:place], "--", *(rest[1:] if rest[:1] == ["--"] else rest)]


def run(args: argparse.Namespace) -> int:
    """Read the command, estimate it, and report whether it fits."""
    from ..formats.conversion.source import read_source
    from ..formats.reading.named_files import NamedFiles
    from ..formats.reading.tools import UnknownToolError

    if args.run:
        from .start import check_startable

        check_startable(args.launch)
    hardware = _hardware(args)
    try:
        readings = read_source(args.launch, NamedFiles(), _gpu_bytes(hardware))
    except UnknownToolError as error:
        print_to_stderr(*(f"cannot tell: {problem}" for problem in error.problems))
        return CANNOT_TELL
    problems = [problem for one in readings for problem in one.problems]
    if problems:
        raise InputError(problems)
    code = max((_check(args, one, hardware) for one in readings), key=_severity)
    if args.run and code == EXIT_CODES[FITS]:
        from .start import become

        become(args.launch)
    if args.run:
        print_to_stderr("not started, because it is not known to fit")
    return code


def _severity(code: int) -> int:
    """1 before 3 before 0: one container that does not fit decides."""
    return (EXIT_CODES[FITS], CANNOT_TELL, DOES_NOT_FIT).index(code)


def _check(args: argparse.Namespace, reading: Reading, hardware: Mapping[str, Any]) -> int:
    """Report one reading; returns its exit code."""
    from msgspec.structs import replace

    from ..core.calculator import full_estimate
    from ..core.memory_result import with_limits
    from ..core.runfile import with_settings

    data = {**reading.run_file, "hardware": {**(reading.run.get("hardware") or {}), **hardware}}
    data = with_settings(data, args.settings)
    try:
        estimate = full_estimate(data)
    except InputError as error:
        return _cannot_tell(args, reading, error.problems)
    result = replace(estimate.result, assumed=[*reading.assumed, *estimate.result.assumed])
    if not estimate.resolved.hardware.named:
        result = with_limits(result, [CARD])
    estimate = replace(estimate, result=result)
    code = EXIT_CODES[estimate.result.verdict]
    if args.format == "json":
        from ..report.data import to_json

        write(to_json(_data(reading, code, data, estimate.result)), args.output)
    else:
        from ..report.reading import reading_lines

        lines = reading_lines(reading, estimate.result)
        show([*_answer(args, estimate), *lines], args.output)
    return code


def _hardware(args: argparse.Namespace) -> dict[str, Any]:
    """The hardware section of the options; without a card there, that of this machine."""
    given = {key: getattr(args, key) for key in KEYS.values() if getattr(args, key) is not None}
    section = {key.partition(".")[2]: value for key, value in given.items()}
    if "gpu" in section or "gpu_memory_gb" in section:
        return section
    from .this_machine import this_machine

    return this_machine() | section


def _gpu_bytes(hardware: Mapping[str, Any]) -> int | None:
    """Memory of one GPU; None where no card is named. Raises where the name means no card."""
    if hardware.keys() <= {"num_gpus"}:
        return None
    from msgspec import convert

    from ..core.hardware import find_hardware
    from ..core.models import GPUConfig

    return find_hardware(convert(hardware, GPUConfig), None).card_bytes


def _cannot_tell(args: argparse.Namespace, reading: Reading, problems: Sequence[str]) -> int:
    """Report a run that is read, but not modelled."""
    if args.format == "json":
        from ..report.data import to_json

        data = {"verdict": UNSURE, "exit_code": CANNOT_TELL, "problems": list(problems)}
        write(to_json({**data, **_read_data(reading)}), args.output)
    else:
        from ..report.reading import reading_lines

        show(reading_lines(reading), args.output)
    print_to_stderr(*(f"cannot tell: {problem}" for problem in problems))
    return CANNOT_TELL


def _answer(args: argparse.Namespace, estimate: Any) -> list[Any]:
    """The short answer of `calculate` or `infer`, or with --long the whole report."""
    if estimate.served:
        from ..core.infer_command import infer_command
        from ..core.serving_answers import answers

        asked = infer_command(estimate.result.run)
        found = answers(estimate, (), (), command=asked)
        from .serving import serving_text

        return serving_text(args, estimate, found, asked)
    from ..core.training_answers import training_answers
    from ..report.remedy_lines import Commands
    from .calculate import training_text

    found_answers = training_answers(estimate)
    commands = Commands(
        _words(args),
        _words(args, "--long"),
        [
            _words(args, *(word for one in remedy.settings for word in ("--set", one)))
            for remedy in found_answers.remedies
        ],
        _words(args, "--long"),
    )
    return training_text(args, estimate, found_answers, commands, ())


def _words(args: argparse.Namespace, *more: str) -> list[str]:
    """The words of the same command with further options."""
    given = [(name, getattr(args, key)) for name, key in KEYS.items()]
    own = [word for name, value in given if value is not None for word in (name, f"{value}")]
    own += [word for one in args.settings for word in ("--set", one)]
    return ["check", *own, *more, *args.launch]


def _data(reading: Reading, code: int, run: Mapping[str, Any], result: Any) -> dict[str, Any]:
    """The answer as data: the verdict, the four numbers, and what was read."""
    from msgspec import to_builtins

    return {
        "verdict": result.verdict,
        "exit_code": code,
        "summary": result.summary,
        **_read_data(reading),
        "limits": to_builtins(result.limits),
        "run": run,
        "result": to_builtins(result),
    }


def _read_data(reading: Reading) -> dict[str, Any]:
    return {
        "tool": reading.tool,
        "version": reading.version,
        "keys": reading.keys,
        "assumed": reading.assumed,
    }

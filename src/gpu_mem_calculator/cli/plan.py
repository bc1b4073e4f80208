"""Find the set-ups that fit on your GPUs, fastest first: engine, parallelism,
micro-batch, recompute and the rest, with the time of a step and its cost."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from ..advice.planner.answers.plans import PlansSoFar
from ..advice.planner.answers.question import FASTEST, GOALS
from ..advice.planner.asking.ask import plan, with_files
from ..report.terminal import takes_escapes
from ..runfile.text.counts import parameter_count
from ..runfile.text.errors import InputError, print_to_stderr
from .export import check_export, write_export
from .output import screen_width, with_holders, write
from .parser import option_name
from .screen import Screen
from .training_options import GPUS_PER_NODE, REPLACED

if TYPE_CHECKING:
    from types import FrameType

    from ..advice.planner.answers.plans import Plans
    from ..report.progress_bar import ProgressBar

SOUGHT = [name for name in GOALS if name != FASTEST]
# Options of a question, by the names that they have in `plan`, too.
ASKED = (
    *("gpus", "gpu", "seq_len", "global_batch", "engine", "price"),
    *("serve", "users", "context", "new_tokens"),
)
HARDWARE = {
    "gpu_mem": "hardware.gpu_memory_gb",
    "nodes": "hardware.num_nodes",
    "node_ram": "hardware.node_memory_gb",
    "os": "hardware.os",
}
INTERRUPTED = 130  # the exit code, as a shell has it
SETTLED = 1.0  # seconds of a phase after which the time left is estimated
RUNS = "plans"  # the folder that is proposed for --save-runs
TARGETS = ("latency", "first_token", "throughput")


def run(args: argparse.Namespace) -> int:
    """Plan, and show the plans; after Ctrl-C those that were found before it."""
    if args.export:
        check_export(args)
    if args.save_runs:
        make_folder(args.save_runs)
    total = None if args.tokens is None else parameter_count(args.tokens, "--tokens")
    shows = show_plans(args)
    code = 0
    with Screen(args.output, grows=args.format == "table" and not args.export) as screen:
        try:
            if args.candidates:
                plans = candidate_plans(args, total)
            else:
                plans = asked_plans(args, total, screen)
        except PlansSoFar as interrupted:
            plans, code = interrupted.plans, INTERRUPTED
        except KeyboardInterrupt:
            print_to_stderr("interrupted before a set-up was found")
            return INTERRUPTED
        if args.save_runs:
            save_runs(plans, args.save_runs)
        shows(plans, screen)
    if code:
        print_to_stderr("interrupted; these are the plans so far")
    return code


def show_plans(args: argparse.Namespace) -> Callable[[Plans, Screen], None]:
    """What shows the plans as the options ask, loaded before the search."""
    if args.export:
        return lambda plans, screen: export_best(args, plans)
    if args.format == "table":
        from ..report.plan.summary import plans_line
        from ..report.plan.text import plan_lines

        width = screen_width(args.output)

        def finish(plans: Plans, screen: Screen) -> None:
            lines = plan_lines(plans, next_words(args) if plans.plans else [], width)
            screen.finish(with_holders(args, lines, plans_line(plans)))

        return finish
    if args.format == "json":
        from ..report.encode import answer, to_json
        from ..report.plan.summary import plans_data

        return lambda plans, screen: write(to_json(answer(plans_data(plans))), args.output)
    from ..report.plan.page import plan_page

    return lambda plans, screen: write(plan_page(plans), args.output)


def asked_plans(args: argparse.Namespace, total: int | None, screen: Screen) -> Plans:
    """The plans for the question of the options; `total` are the tokens of the training."""
    goals = [name for name in SOUGHT if getattr(args, name)]
    if len(goals) > 1:
        first, second = map(option_name, goals[:2])
        raise InputError(f"{first} and {second} cannot be combined; give one of them")
    asked = {name: getattr(args, name) for name in (*ASKED, *TARGETS)}
    given = {name: value for name, value in asked.items() if value is not None}
    if args.nodes and not args.gpus:
        given["gpus"] = GPUS_PER_NODE * args.nodes
    own = {key: getattr(args, name) for name, key in HARDWARE.items() if getattr(args, name)}
    fixed = dict(_pair(text, "--set") for text in args.settings)
    fixed |= dict(_pair(text, "--fix") for text in args.fix)
    varied = {key: _values(text) for key, text in (_parts(one, "--vary") for one in args.vary)}
    with watched(screen) as watch:
        return plan(
            args.model,
            **given,
            progress=watch.progress,
            found=watch.found if watch.shows else None,
            tokens=total,
            top=args.top,
            goal=goals[0] if goals else FASTEST,
            fix={**own, **fixed},
            vary=varied,
        )


class Watch:
    """What a terminal shows of a search: a bar with its phase, the time left and the best seconds
    so far; above it the best plan so far. Nothing elsewhere.
    """

    def __init__(self, screen: Screen, bar: ProgressBar | None) -> None:
        self.screen, self.bar = screen, bar
        self.phase, self.begun, self.best = "", 0.0, ""
        self.interrupted = False

    @property
    def shows(self) -> bool:
        """Whether there is a terminal."""
        return self.screen.live or self.bar is not None

    def progress(self, text: str, part: float) -> None:
        """Show what is done, and how long the rest of the phase will take."""
        if self.interrupted:
            raise KeyboardInterrupt
        if self.bar is None:
            return
        phase, now = text.partition(",")[0], time.monotonic()
        if phase != self.phase:
            self.phase, self.begun = phase, now
        passed = now - self.begun
        left = f", {passed * (1 - part) / part:.0f} s left" if part and passed > SETTLED else ""
        self.bar.show(f"{text}{left}{self.best}", round(100 * part))

    def found(self, plans: Plans) -> None:
        """Show the plans so far, of which the first is new."""
        from ..report.plan.amounts import seconds_text
        from ..report.plan.text import first_lines

        self.best = f", best step {seconds_text(plans.plans[0].step_seconds.estimate)} s"
        if self.bar is not None:
            self.bar.erase()  # the screen may be on the same terminal
        width = screen_width(self.screen.output)
        self.screen.sketch(lambda: first_lines(plans, width), "faster set-ups", last=False)

    def interrupt(self, _number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt; where it would be lost, `progress` does."""
        self.interrupted = True
        while frame is not None:
            code, frame = frame.f_code, frame.f_back
            if code.co_name == "__del__" or code.co_filename.startswith("<frozen importlib"):
                return
        raise KeyboardInterrupt


@contextmanager
def watched(screen: Screen) -> Iterator[Watch]:
    """What shows a search, which Ctrl-C interrupts; elsewhere Ctrl-C ends this process."""
    with ExitStack() as stack:
        bar = None
        if takes_escapes(sys.stderr):
            from ..report.progress_bar import ProgressBar

            bar = stack.enter_context(ProgressBar(sys.stderr, 100))
        watch, before = Watch(screen, bar), signal.getsignal(signal.SIGINT)
        if before not in (signal.SIG_IGN, signal.default_int_handler):  # in a process of its own
            signal.signal(signal.SIGINT, watch.interrupt)
            stack.callback(signal.signal, signal.SIGINT, before)
        yield watch


def candidate_plans(args: argparse.Namespace, total: int | None) -> Plans:
    """The plans of the files of --candidates, ranked."""
    kept = ("gpu", "gpus", "nodes", "seq_len", "gpu_mem", "node_ram", "price")
    named = [*(name for name in (*ASKED, *TARGETS) if name not in kept), *SOUGHT, "fix", "vary"]
    for name in named:
        if getattr(args, name):
            why = "is for a search, and --candidates are ranked as they are"
            raise InputError(f"{option_name(name)} {why}")
    sources = {file: candidate(args, file) for file in args.candidates}
    plans = plan(candidates=list(sources.values()), price=args.price, tokens=total, top=args.top)
    return with_files(plans, sources)


def candidate(args: argparse.Namespace, file: str) -> dict[str, Any]:
    """The run of one of --candidates, with MODEL and --gpu, --gpus, --seq-len and --set."""
    from ..runfile.read import with_settings
    from .run_source import run_source

    keys = {"hardware.gpu": args.gpu, "hardware.num_gpus": args.gpus}
    keys |= {key: getattr(args, name) for name, key in HARDWARE.items()}
    keys |= {"training.seq_len": args.seq_len}
    own = [f"{key}={json.dumps(value)}" for key, value in keys.items() if value is not None]
    words = argparse.Namespace(config=file, preset=None, model=None, settings=[])
    try:
        source = run_source(words)
    except InputError as error:
        if args.model is None or "names no model" not in error.problems[0]:
            raise
        words.model = args.model
        source = run_source(words)
    print_to_stderr(*(f"{file}: assumed {text}" for text in source.notes))
    print_to_stderr(*(f"{file}: not modelled: {text}" for text in source.limits))
    changed = [key for key, value in keys.items() if value is not None]
    stale = [f"{old}=null" for key in changed for old in REPLACED.get(key, ())]
    model = [f"model.name={args.model}"] if args.model else []
    data = with_settings(source.run, (*model, *stale, *own, *args.settings))
    if not (data.get("hardware") or {}).get("gpu"):
        raise InputError(f"{file} names no GPU, so its speed is not known; add --gpu, such as h100")
    return data


def _parts(text: str, option: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key.strip() or not value.strip():
        raise InputError(f"{option} {text!r} must be KEY=VALUE, such as tp=8")
    return key.strip(), value.strip()


def _pair(text: str, option: str) -> tuple[str, Any]:
    key, value = _parts(text, option)
    return key, _value(value)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _values(text: str) -> list[Any]:
    """The values of --vary: separated by commas, or a JSON list."""
    listed = _value(text)
    return listed if isinstance(listed, list) else [_value(one.strip()) for one in text.split(",")]


def make_folder(folder: str) -> None:
    """Make the folder of --save-runs, or raise a sentence."""
    import os

    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise InputError(f"--save-runs {folder}: cannot be made, {error.strerror}") from None


def save_runs(plans: Plans, folder: str) -> None:
    """Write the run file of each plan."""
    import os

    from ..runfile.text.files import write_file

    for one in plans.plans:
        path = os.path.join(folder, f"plan-{one.rank}.json")
        write_file(path, json.dumps(one.run, indent=2).encode(), "--save-runs")
    if plans.plans:
        last = plans.plans[-1].rank
        print_to_stderr(f"wrote plan-1.json to plan-{last}.json in {folder}", begins="")


def export_best(args: argparse.Namespace, plans: Plans) -> None:
    """Write the first plan in the format of --export."""
    if not plans.plans or not plans.plans[0].fits_on_gpu:
        raise InputError(f"no set-up fits, so there is none to write as {args.export}")
    write_export(args.export, plans.plans[0].run, args.output)


def next_words(args: argparse.Namespace) -> list[list[str]]:
    """Commands to continue with: save the run files, look at one."""
    again = asked_words(args)
    folder = args.save_runs or RUNS
    if args.candidates:
        return [["explain", args.candidates[0]]]
    found = [] if args.save_runs else [[*again, "--save-runs", folder]]
    return [*found, ["calculate", f"{folder}/plan-1.json"]]


def asked_words(args: argparse.Namespace) -> list[str]:
    """The words of the same question."""
    words = ["plan", *([args.model] if args.model else [])]
    for name in (*ASKED, *HARDWARE, "tokens", *TARGETS):
        if (value := getattr(args, name)) is not None:
            text = f"{value:g}" if isinstance(value, float) else str(value)
            words += [option_name(name), text]
    for name, option in (("fix", "--fix"), ("vary", "--vary"), ("settings", "--set")):
        words += [word for one in getattr(args, name) for word in (option, one)]
    words += [option_name(name) for name in SOUGHT if getattr(args, name)]
    return [*words, *(["--candidates", *args.candidates] if args.candidates else [])]

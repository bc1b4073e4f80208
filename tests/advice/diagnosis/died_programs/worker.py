"""One run of one program under a cap, watched from outside: which phase it is in, what it holds.

What the watcher adds to a stack is taken out of the traceback again, so that the text is what the
program prints without it.
"""

import json
import os
import runpy
import sys
import time
import traceback

HERE = os.path.abspath(__file__)


class Phases:
    """The phase that the program is in, and the peak of each."""

    def __init__(self, torch):
        self.torch, self.real = torch, torch.cuda.is_available()
        self.now, self.steps, self.loads, self.depth = "loading", 0, 0, 0
        # Inside an optimizer's step, whose closure may be forward and backward
        self.stepping = False
        self.peaks, self.order, self.marks = {}, [], [(0, "loading")]
        self.trained = self.generates = False

    def close(self):
        """Adds the peak of the phase that ends."""
        if self.real:
            c = self.torch.cuda
            peak, reserved = c.max_memory_allocated(), c.max_memory_reserved()
            held = self.peaks.setdefault(self.now, [0, 0, 0])
            self.peaks[self.now] = [
                max(held[0], peak),
                max(held[1], reserved),
                c.memory_allocated(),
            ]
            c.reset_peak_memory_stats()
        if self.now not in self.order:
            self.order.append(self.now)

    def mark(self, name):
        """Another phase begins."""
        if name != self.now:
            self.close()
            self.now = name
            self.marks.append((time.time_ns() // 1000, name))

    def loading(self):
        """Weights come, if they are the first ones."""
        if not self.trained:
            self.mark("loading" if self.loads <= 1 else "start-up")

    def started(self):
        """Weights are there."""
        if not self.trained:
            self.mark("start-up")


def around(owner, name, before, after):
    """Calls `before` and `after` with an attribute of `owner`, whose signature stays."""
    import functools

    inner = owner.__dict__[name]
    bound = isinstance(inner, classmethod)
    function = inner.__func__ if bound else inner

    @functools.wraps(function)
    def watched(*args, **kwargs):
        before(args)
        result = function(*args, **kwargs)
        after()
        return result

    setattr(owner, name, classmethod(watched) if bound else watched)


def watch(phases, kind, program):
    """Puts marks around loading, forward, backward and the optimizer step."""
    import importlib

    import torch
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )
    from transformers import AutoModelForCausalLM

    def load(args):
        phases.loads += 1
        phases.loading()

    def move(args):
        weight = next(args[0].parameters(), None)
        if weight is not None and weight.device.type == "cpu":
            phases.loading()

    around(AutoModelForCausalLM, "from_pretrained", load, phases.started)
    around(AutoModelForCausalLM, "from_config", load, phases.started)
    around(torch.nn.Module, "to", move, phases.started)
    kind = kind.removesuffix("_text")
    module = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    ends = ("ForCausalLM", "LMHeadModel", "TextModel", kind.title() + "Model")
    names = [n for n in vars(module) if n.endswith(ends)]

    def forward(args):
        if torch.is_grad_enabled():
            phases.trained = True
            phases.mark(f"forward {phases.steps + 1}")
        elif phases.generates or phases.now == "generation":
            phases.mark("generation")
        elif phases.trained:
            phases.mark("evaluation")

    for name in names:
        if "forward" in getattr(vars(module)[name], "__dict__", {}):
            around(vars(module)[name], "forward", forward, lambda: None)

    def backward(args):
        phases.depth += 1
        if phases.depth == 1:
            phases.mark(f"backward {phases.steps + 1}")

    def done():
        phases.depth -= 1
        if phases.depth == 0:
            word = "optimizer" if phases.stepping else "between"
            phases.mark(f"{word} {phases.steps + 1}")

    from transformers import GenerationMixin

    phases.generates = program == "generate.py"  # whose loop by hand calls the model alone
    generation = lambda _: phases.mark("generation")  # noqa: E731
    around(GenerationMixin, "generate", generation, lambda: phases.mark(f"after {phases.steps}"))
    import torch.autograd

    around(torch.autograd, "_engine_run_backward", backward, done)

    def step(*_):
        phases.stepping = True
        if phases.now == f"between {phases.steps + 1}":
            phases.mark(f"optimizer {phases.steps + 1}")

    def stepped(*_):
        phases.stepping = False
        phases.steps += 1
        phases.mark(f"after {phases.steps}")

    register_optimizer_step_pre_hook(step)
    register_optimizer_step_post_hook(stepped)


def name_anything():
    """Some versions of pyarrow have tables that datasets cannot pickle to give them a name."""
    from datasets import fingerprint

    fingerprint.Hasher.hash = classmethod(lambda *_: os.urandom(16).hex())


def outermost(error):
    """The exception without frames of this file and of runpy, and so those before it."""
    seen, text = set(), traceback.TracebackException.from_exception(error)

    def clean(te):
        if te is None or id(te) in seen:
            return
        seen.add(id(te))
        keep = [
            f for f in te.stack if f.filename != HERE and not f.filename.startswith("<frozen runpy")
        ]
        te.stack = traceback.StackSummary.from_list(keep)
        clean(te.__cause__)
        clean(te.__context__)

    clean(text)
    return text


def frames(found):
    """The stack of an allocation, innermost first."""
    out = []
    for f in found:
        name, file = f["name"], f["filename"]
        if HERE in file or "CUDACachingAllocator" in name or "unwind" in name:
            continue
        out.append(f"{file.rsplit('/', 1)[-1]}:{f['line']} {name[:160]}")
    return out[:70]


def history(torch, phases):
    """The allocation that failed, and what was held then, by the phase that allocated it."""
    snapshot = torch.cuda.memory._snapshot()
    trace = snapshot["device_traces"][0]
    failed = next((e for e in reversed(trace) if e["action"] == "oom"), None)
    live = {}
    end = failed["time_us"] if failed else None
    for e in trace:
        if end and e["time_us"] > end:
            break
        if e["action"] == "alloc":
            live[e["addr"]] = e
        elif e["action"] == "free_completed":
            live.pop(e["addr"], None)
    held, largest = {}, {}
    for e in live.values():
        phase = [n for t, n in phases.marks if t <= e["time_us"]][-1]
        held[phase] = held.get(phase, 0) + e["size"]
        stack = " < ".join(
            f.split(" ", 1)[1] + "@" + f.split(" ", 1)[0] for f in frames(e["frames"])[:6]
        )
        row = largest.setdefault((phase, e["size"], stack), [0])
        row[0] += 1
    top = sorted(largest.items(), key=lambda x: -x[0][1] * x[1][0])[:12]
    return {
        "failed": failed and {"size": failed["size"], "frames": frames(failed["frames"])},
        "held_by_phase": held,
        "largest": [{"phase": p, "size": s, "count": n[0], "stack": k} for (p, s, k), n in top],
        "events": len(trace),
    }


def run(case, cap, path, record):
    """Runs the program and returns what became of it; prints what it prints."""
    import torch

    phases = Phases(torch)
    out = {"id": case["id"], "cap": cap}
    if phases.real:
        total = torch.cuda.mem_get_info()[1]
        if cap:
            torch.cuda.set_per_process_memory_fraction(min(1.0, cap / total), 0)
        if record:
            torch.cuda.memory._record_memory_history(
                context="alloc", stacks=record, max_entries=400_000
            )
    watch(phases, case["config"]["model"]["config"]["model_type"], case["program"])
    if case["tool"].startswith("trl"):
        name_anything()
    sys.argv = [path]
    sys.path.insert(0, os.path.dirname(path))
    try:
        runpy.run_path(path, run_name="__main__")
        out["died"] = None
    except BaseException as error:
        sys.stdout.flush()
        text = outermost(error)
        print("".join(text.format()), end="", file=sys.stderr, flush=True)
        out["died"], out["phase"], out["steps"] = type(error).__name__, phases.now, phases.steps
        out["message"] = str(error)[:300]
        stack = list(text.stack)
        out["stack"] = [f"{f.filename}:{f.lineno} {f.name}: {f.line}" for f in stack]
        if phases.real:
            out["allocated"] = torch.cuda.memory_allocated()
            try:
                if record:
                    out |= history(torch, phases)
            except Exception as problem:
                out["history_problem"] = repr(problem)[:300]
    phases.close()
    out["peaks"], out["order"] = phases.peaks, phases.order
    if phases.real:
        out["free"], out["total"] = torch.cuda.mem_get_info()
        out["card"] = torch.cuda.get_device_name(0)
    return out


def main(case, cap, record, result, log, program, environment):
    """In a process of its own: output to `log`, what became of it to `result`."""
    os.environ.update(environment)
    handle = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    try:
        out = run(case, cap, program, record)
    except BaseException as error:
        out = {
            "id": case["id"],
            "cap": cap,
            "broken": repr(error)[:400],
            "where": traceback.format_exc()[-1500:],
        }
    with open(result + ".part", "w") as f:
        json.dump(out, f)
    os.replace(result + ".part", result)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)

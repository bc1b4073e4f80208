"""Runs the drawn cases on a card: without a cap, then under caps until each dies in its phase.

    python run.py FOLDER SECONDS WORKERS [ID...]    writes FOLDER/results.jsonl, one line per case

Needs a GPU, torch and the tools; nothing of this package. Each run is a fork in a PID namespace of
its own where that is allowed, so that torch's message lists no process of another case.
The draw is died_draw.jsonl, or the file that DRAW names.
"""

import json
import os
import re
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import worker  # noqa: E402

MODELS = os.environ.get("MODELS", "/dev/shm/models")
WORK = os.environ.get("WORK", "/workspace")
TRIES = 5


def cases():
    """The draw."""
    with open(os.path.join(HERE, "..", os.environ.get("DRAW", "died_draw.jsonl"))) as f:
        return [json.loads(line) for line in f]


def settings(case, number):
    """What the program reads from its environment."""
    args = case["args"] | {
        "model": f"{MODELS}/{case['model']}",
        "device": os.environ.get("DEVICE", "cuda"),
        "output": f"{WORK}/out/{case['id']}-{number}",
    }
    return {"ARGS": json.dumps(args), "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}


def save_checkpoint(torch, model, name, path):
    """What a script of its own saves to go on later: fp32 weights and the optimizer's states."""
    model, sgd = model.float(), {"lr": 1e-2, "momentum": 0.95}
    kind, kwargs = (torch.optim.SGD, sgd) if name == "sgd" else (torch.optim.AdamW, {"lr": 3e-4})
    optimizer = kind(model.parameters(), **kwargs)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)


def save_models(drawn, resumed):
    """Each model once, with random weights in bf16."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    for name, fields in drawn.items():
        fields = dict(fields)
        config = AutoConfig.for_model(fields.pop("model_type"), **fields)
        with torch.device(os.environ.get("DEVICE", "cuda")):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model.save_pretrained(f"{MODELS}/{name}", max_shard_size="50GB")
        if name in resumed:
            save_checkpoint(torch, model, resumed[name], f"{MODELS}/{name}/checkpoint.pt")
        print(name, sum(p.numel() for p in model.parameters()), flush=True)
        del model


def in_namespace(work):
    """Forks `work` into a PID namespace of its own; returns the PID to wait for."""
    outer = os.fork()
    if outer:
        return outer
    os.setsid()  # so that all of it can be ended
    own = os.environ.get("NAMESPACES") == "1"
    if own:
        os.unshare(os.CLONE_NEWPID | os.CLONE_NEWNS)
    inner = os.fork()  # the namespace's first process, which waits for the others
    if inner == 0:
        if own:  # CUDA looks at /proc
            os.system("mount --make-rprivate / && mount -t proc proc /proc")
        os._exit(work())
    os.waitpid(inner, 0)
    os._exit(0)


def attempt(case, number, cap, record, hog=None):
    """Starts one run; returns its PID and where its result will be."""
    stem = f"{WORK}/runs/{case['id']}-{number}"
    os.makedirs(os.path.dirname(stem), exist_ok=True)
    program = os.path.join(WORK, case["program"])

    def work():
        holder = holding(hog) if hog else None
        run = os.fork()
        if run == 0:
            worker.main(
                case, cap, record, stem + ".json", stem + ".log", program, settings(case, number)
            )
        os.waitpid(run, 0)
        if holder:
            os.kill(holder, 9)
            os.waitpid(holder, 0)
        return 0

    return in_namespace(work), stem


def holding(leave):
    """Another process that takes all of the card but `leave`; returns its PID when it has it."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        import torch

        torch.cuda.init()
        free = torch.cuda.mem_get_info()[0]
        held = [
            torch.empty(min(2**30, free - leave - i), dtype=torch.uint8, device="cuda")
            for i in range(0, max(0, free - leave), 2**30)
        ]
        os.write(write, b"x")
        time.sleep(600 + len(held))
        os._exit(0)
    os.read(read, 1)
    return pid


def numbered(name):
    """`forward 2` as its parts."""
    found = re.match(r"(\w+) (\d+)$", name)
    return (found[1], int(found[2])) if found else (name, 0)


def hits(case, phase):
    """Whether a phase is the one that the case is to die in."""
    word, step = numbered(phase)
    target, inside = case["phase"], ("forward", "backward", "between", "optimizer")
    lengths = case["args"]["lengths"]
    batch = case["args"].get("training_args", {}).get("per_device_train_batch_size", 1)
    lengths = lengths[::batch]
    if target in ("loading", "start-up"):
        return phase == target
    if target.startswith("first "):
        return word == {"first optimizer step": "optimizer"}.get(target, target[6:]) and step == 1
    if target == "second step":
        return word in inside and step == 2
    if target in ("evaluation", "generation"):
        return word == target
    if target == "save":
        return word == "after" and step == len(lengths)
    if target == "longer batch" and case["tool"].startswith("trl"):
        return word in inside and step > 2  # TRL shuffles
    if target == "longer batch":
        return word in inside and step == lengths.index(max(lengths)) + 1
    if target == "second process":
        return word == "generation" or (word in inside and step == 1)
    return word in inside


def bounds(case, probe):
    """The highest peak before the target phase, and that of the target phase, in bytes."""
    before, target = 0, 0
    for phase in probe["order"]:
        peak = probe["peaks"][phase][0]
        if hits(case, phase):
            target = max(target, peak)
        elif not target:
            before = max(before, peak)
    return before, target


def life(case):
    """Yields (number, cap, record), takes results, returns what became of the case."""
    probe = yield 0, None, None
    tried = []
    out = {"id": case["id"], "probe": probe, "tries": tried, "final": None}
    if probe is None or probe.get("broken") or probe.get("died") or not probe.get("peaks"):
        return out
    before, target = bounds(case, probe)
    out["before"], out["target"] = before, target
    low, high = (before, target) if target > before else (0.5 * target, target)
    cap = low + case["share"] * (high - low)
    if case["phase"] == "fragmentation":
        low, high = target, target * 1.3
        cap = target * 1.004
    for number in range(1, TRIES + 1):
        result = yield number, int(cap), RECORD
        if result is None or result.get("broken"):
            tried.append([int(cap), "broken"])
            break
        died = result.get("died")
        tried.append([int(cap), died, result.get("phase")])
        if died and "OutOfMemory" in died:
            if hits(case, result["phase"]):
                out["final"], out["hit"] = number, True
                break
            out["final"] = number  # earlier than wanted
            low = cap
        elif died:
            break
        else:
            high = cap
        order = probe["order"]
        later = (
            died
            and result["phase"] in order
            and any(hits(case, p) for p in order[: order.index(result["phase"])])
        )
        if later and case["phase"] != "fragmentation":
            low, high = before, cap
        if case["phase"] == "fragmentation":
            cap = cap * 1.01 if died else cap * 0.997
        else:
            cap = (low + high) / 2 if high > low else low * 1.03
    return out


RECORD = os.environ.get("RECORD", "all")


def read(stem):
    """A result, and what was printed."""
    try:
        with open(stem + ".json") as f:
            result = json.load(f)
    except OSError:
        return None
    return result


def needs(case):
    """A guess of what a run takes without a cap, so that not too many run at once."""
    m = case["config"]["model"]["config"]
    lengths = case["args"]["lengths"]
    batch = (
        case["args"].get("batch_size")
        or case["args"]["training_args"]["per_device_train_batch_size"]
    )
    tokens = max(lengths) * batch
    eval_ = case["args"].get("eval") or {}
    if case["phase"] == "evaluation":
        tokens = max(tokens, 16 * 2048 * (6 if eval_.get("keep_logits") else 2))
    width = m.get("hidden_size", m.get("n_embd"))
    depth = m.get("num_hidden_layers", m.get("n_layer"))
    tokens *= 4 if case["tool"] == "trl-dpo" else 1  # two answers, and their logits in fp32
    tokens *= 2 if "num_experts" in m else 1
    return 6e9 + tokens * m["vocab_size"] * 14 + tokens * width * depth * 60


def main():
    """All cases, several at once; those with a second process at the end, one by one."""
    folder, seconds, workers = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    start, chosen = time.time(), sys.argv[4:]
    rows = [c for c in cases() if not chosen or c["id"] in chosen]
    os.makedirs(WORK + "/out", exist_ok=True)
    os.makedirs(MODELS, exist_ok=True)
    for name in os.listdir(HERE):
        if name.endswith(".py") and name not in ("run.py", "worker.py"):
            with open(os.path.join(HERE, name)) as f, open(os.path.join(WORK, name), "w") as g:
                g.write(f.read())
    drawn = {c["model"]: c["config"]["model"]["config"] for c in rows}
    drawn = {n: f for n, f in drawn.items() if not os.path.exists(f"{MODELS}/{n}/config.json")}
    import torch  # noqa: F401
    import transformers  # noqa: F401
    from transformers import AutoModelForCausalLM  # noqa: F401

    if drawn:
        pid = os.fork()
        if pid == 0:
            resumed = [c for c in rows if c["args"].get("resume")]
            save_models(drawn, {c["model"]: c["args"]["optimizer"] for c in resumed})
            os._exit(0)
        os.waitpid(pid, 0)
    print("models saved", round(time.time() - start, 1), flush=True)
    finished = set()
    path = os.path.join(folder, "results.jsonl")
    if os.path.exists(path):
        with open(path) as f:
            finished = {json.loads(line)["id"] for line in f}
    sink = open(path, "a")  # noqa: SIM115
    waiting = sorted(
        (c for c in rows if c["id"] not in finished), key=lambda c: c["phase"] != "fragmentation"
    )
    running, memory = {}, 120e9

    def finish(case, out):
        done = out["final"]
        if done:
            with open(f"{WORK}/runs/{case['id']}-{done}.log", newline="") as f:
                out["text"] = f.read()
            out["result"] = read(f"{WORK}/runs/{case['id']}-{done}")
        else:
            tails = sorted(
                n
                for n in os.listdir(WORK + "/runs")
                if n.startswith(case["id"] + "-") and n.endswith(".log")
            )
            for name in tails[-1:]:
                with open(f"{WORK}/runs/{name}") as f:
                    out["tail"] = f.read()[-2500:]
        sink.write(json.dumps(out) + "\n")
        sink.flush()
        p = out["probe"] or {}
        tried = [(round(t[0] / 2**30, 2), *t[1:]) for t in out["tries"] if t[0] is not None]
        peaks = [round(out.get(key, 0) / 2**30, 2) for key in ("before", "target")]
        problem = (p.get("broken") or p.get("died") or "", (p.get("message") or "")[:120])
        spent = round(time.time() - start, 1)
        print(spent, case["id"], "hit", out.get("hit"), peaks, tried, *problem, flush=True)

    def begin(case, walk, spec):
        pid, stem = attempt(case, *spec)
        running[pid] = (case, walk, stem, time.time())

    hogged = {}
    while waiting or running:
        late = time.time() - start > seconds - 25
        while waiting and not late and len(running) < workers:
            used = sum(needs(r[0]) for r in running.values())
            fit = next((c for c in waiting if used + needs(c) < memory or not running), None)
            if fit is None:
                break
            waiting.remove(fit)
            walk = life(fit)
            begin(fit, walk, next(walk))
        for pid in list(running):
            case, walk, stem, since = running[pid]
            ended = os.waitpid(pid, os.WNOHANG)[0]
            if not ended and (time.time() - since > 100 or time.time() - start > seconds):
                os.killpg(pid, 9)
                os.waitpid(pid, 0)
                ended = pid
            if not ended:
                continue
            del running[pid]
            try:
                spec = walk.send(read(stem))
                if time.time() - start > seconds:
                    raise StopIteration(
                        {"id": case["id"], "probe": None, "tries": [], "final": None}
                    )
                begin(case, walk, spec)
            except StopIteration as stop:
                if case["phase"] == "second process" and stop.value.get("hit"):
                    hogged[case["id"]] = (case, stop.value)
                else:
                    finish(case, stop.value)
        time.sleep(0.05)
        if late and waiting and not running:
            break
    for case, out in hogged.values():
        if time.time() - start < seconds - 20:
            cap = out["tries"][-1][0]
            pid, stem = attempt(case, 99, None, RECORD, hog=cap + int(0.75 * 2**30))
            os.waitpid(pid, 0)
            result = read(stem)
            if result and "OutOfMemory" in (result.get("died") or ""):
                out["final"], out["hogged"] = 99, True
            out["tries"].append(
                [cap, result and result.get("died"), result and result.get("phase")]
            )
        finish(case, out)
    print("over", round(time.time() - start, 1), "left", [c["id"] for c in waiting], flush=True)


if __name__ == "__main__":
    main()

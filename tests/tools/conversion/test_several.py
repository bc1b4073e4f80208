"""Several commands of a script, several containers of a manifest: which run together, and where."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.tools.reading.reading import Reading
from tests.tools.reading_of import readings_of

SERVE = "vllm serve Qwen/Qwen3-%s"


def together(readings: list[Reading]) -> list[tuple[str, ...]]:
    """For each slot that several commands have, the models of its commands."""
    slots = dict.fromkeys(slot for one in readings for slot in one.slots)
    groups = [[one for one in readings if slot in one.slots] for slot in slots]
    names = [tuple(one.run["model"]["name"].rpartition("-")[2] for one in g) for g in groups]
    return [name for name in names if len(name) > 1]


A, B, C = (SERVE % size for size in ("8B", "4B", "14B"))


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        (f"{A}\n{B}", []),
        (f"{A} &\n{B} &", [("8B", "4B")]),
        (f"{A} &\n{B} &\nwait", [("8B", "4B")]),
        (f"{A} &\nwait\n{B} &\nwait", []),
        (f"{A} &\nPID=$!\nkill -0 $PID\n{B}\nkill $PID\n{C}", [("8B", "4B")]),
        (f"{A} &\n{B}\n{C}", [("8B", "4B"), ("8B", "14B")]),
        (f"({A}) &\nf() {{ {B}; }}\nf &", [("8B", "4B")]),
        (f"nohup {A} > a.log 2>&1 &\nsleep 10 && {B}", [("8B", "4B")]),
        (f"docker run -d --gpus all vllm/vllm-openai --model Qwen/Qwen3-8B\n{B}", [("8B", "4B")]),
        (f"docker run --gpus all vllm/vllm-openai --model Qwen/Qwen3-8B\n{B}", []),
        (f"srun --gpus=1 {A} &\nsrun --gpus=1 {B} &\nwait", []),
        (f"srun --overlap {A} &\nsrun --overlap {B} &\nwait", [("8B", "4B")]),
        ("for m in 8B 4B; do vllm serve Qwen/Qwen3-$m & done", [("8B", "4B")]),
    ],
)
def test_commands_in_the_background_run_together(text: str, groups: list[tuple[str, ...]]) -> None:
    """Until the script waits for them or ends them, and with each later one in the foreground."""
    assert together(readings_of(text)) == groups


def test_every_command_is_read() -> None:
    """Once each; what only prepares or asks is left out."""
    text = f"python prepare_data.py\n{A}\n{B}\n{A}\npython client.py"
    assert [one.name for one in readings_of(text)] == [A, B]


def test_a_script_behind_a_launcher_is_read_beside_a_server() -> None:
    """A server and a training run share the machine; a plain script may be anything."""
    text = f"{A} &\ntorchrun --nproc-per-node 4 pretrain_gpt.py --num-layers 2\npython chat.py"
    found = readings_of(text)
    assert [one.tool for one in found] == ["vllm serve", "Megatron-LM pretrain_gpt.py"]
    assert set(found[0].slots) & set(found[1].slots)


@pytest.mark.parametrize(
    ("front", "devices"),
    [("", ()), ("CUDA_VISIBLE_DEVICES=1 ", ("1",)), ("HIP_VISIBLE_DEVICES=2,3 ", ("2", "3"))],
)
def test_the_gpus_of_a_command(front: str, devices: tuple[str, ...]) -> None:
    """Those that are visible; else the first ones."""
    (one,) = readings_of(f"{front}{A}")
    assert one.devices == devices


@pytest.mark.parametrize(
    ("gpus", "devices"), [("2", ("0", "1")), ("'\"device=2,3\"'", ("2", "3")), ("all", ())]
)
def test_the_gpus_of_a_container(gpus: str, devices: tuple[str, ...]) -> None:
    """A number means the first ones."""
    (one,) = readings_of(f"docker run --gpus {gpus} vllm/vllm-openai --model Qwen/Qwen3-8B")
    assert one.devices == devices


def test_gpus_inside_a_container_are_numbered_anew() -> None:
    """The first visible one of devices 2 and 3 is device 2."""
    text = "docker run --gpus '\"device=2,3\"' -e CUDA_VISIBLE_DEVICES=1 vllm/vllm-openai --model Q"
    (one,) = readings_of(text)
    assert one.devices == ("3",)


def test_a_gpu_that_is_not_known() -> None:
    """Its command is not added to what runs beside it, and that is not hidden."""
    found = readings_of(f"CUDA_VISIBLE_DEVICES=$(pick) {A} &\n{B} &")
    assert not together(found)
    assert found[0].limits[-1].key == "CUDA_VISIBLE_DEVICES"


SERVICE = """
    image: vllm/vllm-openai
    command: --model Qwen/Qwen3-%s
    %s
"""
DEVICES = "deploy: {resources: {reservations: {devices: [{%s, capabilities: [gpu]}]}}}"


def compose(*more: str) -> list[Reading]:
    """The services of a compose file with Qwen3 8B, 4B and so on."""
    sizes = ("8B", "4B", "14B")
    text = "".join(
        f"  s{size}:{SERVICE % (size, one)}" for size, one in zip(sizes, more, strict=False)
    )
    return readings_of(f"services:\n{text}")


@pytest.mark.parametrize(
    ("services", "devices", "groups"),
    [
        ([DEVICES % "device_ids: ['0']"] * 2, [("0",), ("0",)], [("8B", "4B")]),
        (
            [DEVICES % "device_ids: ['0']", DEVICES % "device_ids: ['1']"],
            [("0",), ("1",)],
            [("8B", "4B")],
        ),
        ([DEVICES % "count: 1"] * 2, [("0",), ("0",)], [("8B", "4B")]),
        ([DEVICES % "count: all", "gpus: all"], [(), ()], [("8B", "4B")]),
        (
            ["runtime: nvidia\n    environment: [NVIDIA_VISIBLE_DEVICES=1]", "gpus: all"],
            [("1",), ()],
            [("8B", "4B")],
        ),
        (["gpus: all\n    profiles: [a]", "gpus: all\n    profiles: [b]"], [(), ()], []),
        (["gpus: all", "gpus: all\n    profiles: [b]"], [(), ()], [("8B", "4B")]),
        (["gpus: all", "restart: always"], [(), ()], []),
        (["gpus: all\n    scale: 2"], [(), ()], [("8B", "8B")]),
    ],
)
def test_services_share_the_machine(
    services: list[str], devices: list[tuple[str, ...]], groups: list[tuple[str, ...]]
) -> None:
    """With the GPUs that each asks for; a service without a GPU takes none, profiles are apart."""
    found = compose(*services)
    assert [one.devices for one in found] == devices
    assert together(found) == groups


POD = """
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
    - {name: a, image: vllm/vllm-openai, args: [Qwen/Qwen3-8B], resources: {%s}}
    - {name: b, image: vllm/vllm-openai, args: [Qwen/Qwen3-4B], resources: {%s}}
"""


@pytest.mark.parametrize(
    ("first", "second", "devices"),
    [
        ("limits: {nvidia.com/gpu: 1}", "limits: {nvidia.com/gpu: 1}", [("0",), ("1",)]),
        ("limits: {nvidia.com/gpu: 1}", "", [("0",), ()]),
        ("claims: [{name: g}]", "claims: [{name: g}]", [("claim g",), ("claim g",)]),
        (
            "limits: {nvidia.com/gpu.shared: 1}",
            "limits: {nvidia.com/gpu.shared: 1}",
            [("0",), ("0",)],
        ),
    ],
)
def test_containers_of_a_pod(first: str, second: str, devices: list[tuple[str, ...]]) -> None:
    """Each has GPUs of its own where it asks for them; a claim and a share are common."""
    found = readings_of(POD % (first, second))
    assert [one.devices for one in found] == devices
    assert together(found) == [("8B", "4B")]
    assert [one.name for one in found] == ["Pod p, container a", "Pod p, container b"]


UNKNOWN = """
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
    - {name: proxy, image: nginx, args: [nginx]}
    - {name: tei, image: x/text-embeddings, args: [--model-id, m], resources: {limits: {%s: 1}}}
    - {name: llm, command: [python3, -m, sglang.launch_server, --model-path, Qwen/Qwen3-8B],
       resources: {limits: {nvidia.com/gpu: 1}}}
"""


def test_an_unknown_container_does_not_hide_the_known_one() -> None:
    """It is named; with a GPU it is a limit without a bound."""
    (one,) = readings_of(UNKNOWN % "nvidia.com/gpu")
    assert one.tool == "SGLang"
    (limit,) = one.limits
    assert limit.key == "Pod p, container tei"
    assert "it takes GPUs (nvidia.com/gpu: 1)" in limit.why
    assert "Pod p, container proxy asks for no GPU" in one.assumed
    (one,) = readings_of(UNKNOWN % "cpu")
    assert not one.limits


def test_a_command_that_cannot_be_read_does_not_hide_the_others() -> None:
    """Its problem is in its reading."""
    first, second = readings_of(f"{A} --max-model-length 3\n{B}")
    assert "--max-model-length" in first.problems[0]
    assert second.run["model"]["name"] == "Qwen/Qwen3-4B"


@pytest.mark.parametrize(
    ("line", "first"),
    [
        ("python -m sglang.launch_server --model-path Qwen/Qwen3-8B --base-gpu-id 4", "4"),
        ("llama-server -m Qwen3-8B-Q8_0.gguf --device CUDA1", "1"),
    ],
)
def test_a_server_names_its_gpu_by_an_option(line: str, first: str) -> None:
    """SGLang's first GPU, llama.cpp's devices."""
    (one,) = readings_of(line)
    assert one.devices[0] == first

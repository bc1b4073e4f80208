"""Two hundred commands and files, each with a secret in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

MARK = "Zq7hunter2Kx9"  # in every secret
FORM = f"hf_{MARK}Aa11Bb22Cc33"  # recognised by its form, whatever its name
NAMED = MARK  # recognised by its name alone
MODEL = "Qwen/Qwen2.5-0.5B"
SFT = f"trl sft --model_name_or_path {MODEL} --dataset_name x --max_length 128"


class Planted(NamedTuple):
    """What a user gives: the words of a command, and files by their names.

    One word that is a file's name is that file.
    """

    words: tuple[str, ...]
    files: dict[str, str]


# Commands that are read, each with options that are known to its tool.
COMMANDS = {
    "vllm": f"vllm serve {MODEL} --max-model-len 4096",
    "sglang": f"python -m sglang.launch_server --model-path {MODEL}",
    "tgi": f"text-generation-launcher --model-id {MODEL}",
    "llamacpp": "llama-server -m Qwen2.5-7B-Instruct-Q4_K_M.gguf -c 4096",
    "trtllm": f"trtllm-serve {MODEL}",
    "trl": SFT,
    "trainer": f"torchrun --nproc-per-node 2 run_clm.py --model_name_or_path {MODEL} --bf16 true",
    "accelerate": f"accelerate launch --num_processes 2 sft.py --model_name_or_path {MODEL}",
    "megatron": "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 2 --hidden-size 256",
    "swift": f"swift sft --model {MODEL} --train_type lora",
    "llamafactory": f"llamafactory-cli train --model_name_or_path {MODEL} --stage sft",
    "openrlhf": f"deepspeed --module openrlhf.cli.train_sft --pretrain {MODEL}",
    "verl": f"python -m verl.trainer.main_ppo actor_rollout_ref.model.path={MODEL}",
}
# How a secret gets into a command.
FRONT = (
    f"HF_TOKEN={NAMED}",
    f"env WANDB_API_KEY={NAMED}",
    f"docker run --gpus all -e HUGGING_FACE_HUB_TOKEN={NAMED} image",
    f"srun --export=ALL,HF_TOKEN={NAMED}",
)
BACK = (
    f"--hub_token {NAMED}",
    f"--hub-token={FORM}",
    f"--api-key {NAMED}",
    f"--wandb-api-key {NAMED}",
    f"--no-such-option {NAMED}",
    f"--password '{NAMED} and more'",
    f'--additional-config \'{{"x": "{NAMED}", "api_key": "{NAMED}"}}\'',
    f'--hf-overrides \'{{"auth": {{"token": "{FORM}"}}}}\'',
)
ADDRESSES = (
    f"s3://bucket/model?X-Amz-Signature={NAMED}",
    f"https://user:{NAMED}@huggingface.co/{MODEL}",
    f"https://huggingface.co/{MODEL}?token={NAMED}",
    f"s3://AKIA{'Z9' * 8}:{NAMED}@bucket/model",
    f"/models/{FORM}",
)
TRL_FILE = f"model_name_or_path: {MODEL}\ndataset_name: x\nmax_length: 128\nuse_peft: true\n"
RUN = {
    "model": {"name": "qwen2.5-0.5b"},
    "program": {"tool": "trl.SFTTrainer", "args": {"max_length": 128, "hub_token": ""}},
    "hardware": {"gpu": "h100"},
}
SCRIPT = f"""
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from huggingface_hub import login
login(token="SECRET")
model = AutoModelForCausalLM.from_pretrained("{MODEL}", token="SECRET")
args = TrainingArguments("out", per_device_train_batch_size=2, bf16=True, hub_token="SECRET")
Trainer(model=model, args=args).train()
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: server}
spec:
  containers:
  - name: server
    image: vllm/vllm-openai:v0.11.0
    command: [vllm, serve, MODEL, --api-key, SECRET]
    env:
    - {name: HF_TOKEN, value: SECRET}
    resources: {limits: {nvidia.com/gpu: 1}}
"""
COMPOSE = """
services:
  server:
    image: vllm/vllm-openai:v0.11.0
    command: --model MODEL --api-key SECRET --no-such SECRET
    environment: ["HF_TOKEN=SECRET", "OTHER_PASSWORD=SECRET"]
    deploy: {resources: {reservations: {devices: [{capabilities: [gpu], count: 1}]}}}
"""
FILES = {
    "sft.yaml": f"{TRL_FILE}hub_token: SECRET\n",
    "deep.yaml": f"{TRL_FILE}model_init_kwargs: {{token: SECRET, api_key: SECRET}}\n",
    "unknown.yaml": f"{TRL_FILE}wandb_api_key: SECRET\nmy_password: SECRET\n",
    "quoted.yaml": f"{TRL_FILE}hub_token: 'SECRET'\nreport_to: 'wandb --api-key SECRET'\n",
    "axolotl.yml": f"base_model: {MODEL}\nsequence_len: 512\nmicro_batch_size: 1\nadapter: lora\n"
    "lora_r: 8\nlora_alpha: 16\nlora_target_linear: true\nhub_token: SECRET\nwandb_key: SECRET\n",
    "factory.yaml": f"model_name_or_path: {MODEL}\nstage: sft\nfinetuning_type: lora\n"
    "template: qwen\ndataset: x\nhub_token: SECRET\nhf_hub_token: SECRET\n",
    "run.json": json.dumps(RUN).replace('"hub_token": ""', '"hub_token": "SECRET"'),
    "run.yaml": "model: {name: gpt2}\ntraining: {batch_size: 1}\napi_key: SECRET\n",
    "run.toml": '[model]\nname = "gpt2"\ntoken = "SECRET"\n',
    "good.toml": '[model]\nname = "qwen2.5-0.5b"\n[program]\ntool = "transformers.Trainer"\n'
    '[program.args]\nhub_token = "SECRET"\n',
    "ds.json": '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}, '
    '"wandb": {"enabled": true, "api_key": "SECRET"}, "hub_token": "SECRET"}',
    "broken.json": "SECRET",
    "cut.json": '{"hub_token": "SECRET", "model": ',
    "after.json": '{"model": {"name": "gpt2"}} SECRET',
    "broken.yaml": "hub_token: *SECRET\n",
    "text.yaml": "SECRET",
    "broken.toml": "hub_token = SECRET\n",
    "go.sh": f"#!/bin/bash\nexport HF_TOKEN=SECRET\nKEY=SECRET\n{SFT} --hub_token $KEY\n",
    "here.sh": f"cat > x.yaml <<EOF\n{TRL_FILE}hub_token: SECRET\nEOF\ntrl sft --config x.yaml\n",
    "cut.sh": f"{SFT} --hub_token 'SECRET\n",
    "job.sbatch": f"#!/bin/bash\n#SBATCH --gres=gpu:1\nsrun --export=HF_TOKEN=SECRET {SFT}\n",
    "train.py": SCRIPT,
    "pod.yaml": POD.replace("MODEL", MODEL),
    "compose.yaml": COMPOSE.replace("MODEL", MODEL),
    "Modelfile": "FROM llama3.1:8b\nPARAMETER num_ctx 4096\nSYSTEM token: SECRET\n",
    "wrong.yaml": f"{TRL_FILE}per_device_train_batch_size: SECRET\nhub_token: SECRET\n",
}


def planted() -> Iterator[tuple[str, Planted]]:
    """All cases with their names."""
    import shlex

    for tool, command in COMMANDS.items():
        for number, front in enumerate(FRONT):
            yield f"{tool}-front{number}", Planted(tuple(shlex.split(f"{front} {command}")), {})
        for number, back in enumerate(BACK):
            yield f"{tool}-back{number}", Planted(tuple(shlex.split(f"{command} {back}")), {})
    for number, address in enumerate(ADDRESSES):
        yield f"address{number}-vllm", Planted(("vllm", "serve", address), {})
        yield f"address{number}-trl", Planted(("trl", "sft", "--model_name_or_path", address), {})
    for name, text in FILES.items():
        words = ("python", name) if name.endswith(".py") else (name,)
        for secret in (FORM, NAMED) if "wrong" not in name else (FORM,):
            file = {name: text.replace("SECRET", secret)}
            yield f"{name}-{'form' if secret == FORM else 'name'}", Planted(words, file)

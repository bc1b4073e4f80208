"""Answer a batch of prompts."""

import json
import os
from types import SimpleNamespace

import torch
from transformers import AutoModelForCausalLM

args = SimpleNamespace(**json.loads(os.environ["ARGS"]))


@torch.inference_mode()
def greedy(model, ids):
    """Token after token."""
    cache, step = None, ids
    for _ in range(args.new_tokens):
        out = model(input_ids=step, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache, step = out.past_key_values, out.logits[:, -1:].argmax(-1)
        ids = torch.cat([ids, step], dim=1)
    return ids


def run():
    """Load, answer."""
    model = AutoModelForCausalLM.from_pretrained(
        args.model,
        dtype=getattr(torch, args.dtype),
        attn_implementation=args.attention,
        device_map=args.device,
    ).eval()
    shape = (args.batch_size, args.lengths[0])
    prompts = torch.randint(10, model.config.vocab_size, shape, device=args.device)
    print(f"{shape[0]} prompts of {shape[1]} tokens, {args.new_tokens} new", flush=True)
    if args.kind == "by hand":
        answers = greedy(model, prompts)
    else:
        answers = model.generate(
            input_ids=prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=args.new_tokens,
            min_new_tokens=args.new_tokens,
            num_beams=args.beams,
            do_sample=False,
            pad_token_id=0,
        )
    print("answers", tuple(answers.shape))


if __name__ == "__main__":
    run()

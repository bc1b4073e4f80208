"""DistributedDataParallel, started by torchrun."""

import os

import torch
import torch.distributed as dist
from tiny import make_batch, make_model
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
model = DistributedDataParallel(make_model(), device_ids=[local])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
assert dist.get_world_size() == 4
for _ in range(1000):
    batch = make_batch()
    loss = model(**batch).loss
    (loss / 1).backward()
    del loss
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()

"""A plain loop on one GPU."""

import sys

import torch
from tiny import make_batch, make_model

model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for step in range(int(sys.argv[1]) if sys.argv[1:] else 1000):
    batch = make_batch()
    loss = model(**batch).loss
    (loss / 1).backward()
    seen = loss.item()
    del loss
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {seen:.2f}, {torch.cuda.memory_allocated()} bytes")
torch.save(model.state_dict(), "weights.pt")

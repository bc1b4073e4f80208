"""PyTorch FSDP2: units, the instants of a step, gathers and reductions."""

ALIASES = ()
SHORTHANDS: dict[str, dict[str, int]] = {
    "fsdp2": {},
    "fully_shard": {},
    "fsdp1": {"fsdp_version": 1},
}

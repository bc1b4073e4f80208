"""DeepSpeed 0.19.8: ZeRO 0 to 3, offload, PipelineModule."""

ALIASES = ()
SHORTHANDS: dict[str, dict[str, int]] = {
    **{
        f"{prefix}zero{dash}{stage}": {"zero_stage": stage}
        for prefix in ("", "deepspeed-", "deepspeed_")
        for dash in ("", "-", "_")
        for stage in (0, 1, 2, 3)
    },
    "ds": {},
}

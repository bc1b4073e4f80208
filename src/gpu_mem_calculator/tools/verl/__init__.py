"""verl: PPO, GRPO and SFT, started with Hydra's overrides (key=value)."""

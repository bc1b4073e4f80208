"""OpenRLHF: SFT, DPO, reward models and PPO on DeepSpeed."""

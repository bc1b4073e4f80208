"""ZeRO as DeepSpeed 0.19.8 runs it: formulas that engines share, free of any engine."""

"""DeepSpeed 0.19.8: ZeRO 0 to 3, offload, PipelineModule."""

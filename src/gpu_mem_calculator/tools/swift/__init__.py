"""ms-swift 3602360: swift sft, pt and rlhf, and the same of megatron."""

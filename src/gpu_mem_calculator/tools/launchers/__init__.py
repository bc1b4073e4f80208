"""What stands in front of a program: variables, torchrun, accelerate launch, deepspeed ..."""

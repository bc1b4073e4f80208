"""Ends in the way that its argument names."""

import sys
import urllib.request

import torch


def own_error():
    """The script's own mistake."""
    torch.zeros(2, 3, device="cuda") @ torch.zeros(2, 3, device="cuda")


def network():
    """Asks for another machine."""
    urllib.request.urlopen("http://example.org/data.txt")


def no_step():
    """Trains nothing."""
    print(torch.cuda.get_device_name())


def exit_code():
    """Ends with an exit code."""
    sys.exit(3)


def unknown_model():
    """A model whose configuration is nowhere."""
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained("nobody/has-this-model")


def unknown_dtype():
    """The dtype of a checkpoint that is not here."""
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained("openai-community/gpt2")


def quantized():
    """Weights in 4 bits."""
    from transformers import AutoModelForCausalLM

    name = "openai-community/gpt2"
    AutoModelForCausalLM.from_pretrained(name, quantization_config={"load_in_4bit": True})


def two_devices():
    """Layers on two GPUs of one process."""
    from transformers import AutoModelForCausalLM

    places = {"transformer": 0, "lm_head": 1}
    AutoModelForCausalLM.from_pretrained("gpt2", dtype="float32", device_map=places)


def not_installed():
    """A package that is missing."""
    import no_such_package  # noqa: F401


def driver():
    """Asks the driver itself."""
    raise RuntimeError("Found no NVIDIA driver on your system")


globals()[sys.argv[1]]()

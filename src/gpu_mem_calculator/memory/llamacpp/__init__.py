"""llama.cpp: where its layers and its cache go, and how large its compute buffers are."""

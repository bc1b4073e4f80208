"""Which set-up is best: a space of set-ups by memory and time, the best of them in full."""

"""What all engines share: a run, an engine, the phases of a step, a server's memory."""

"""SkyPilot tasks: the commands of `run`, and the cards of `resources`."""

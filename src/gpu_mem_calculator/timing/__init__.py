"""How long a step or a request takes, from what cards, hosts and links can do."""

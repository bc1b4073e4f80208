"""How a model's weights are stored: one file for each family of formats."""

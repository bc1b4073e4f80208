"""Public step times of other people's runs, as run files, and the score of predictions on them."""

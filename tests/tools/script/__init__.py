"""Python training scripts, followed line by line."""

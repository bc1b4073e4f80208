"""Models from a file, a folder, the Hugging Face hub, a bucket or an address.

Headers are read, never weights, and no code of a repository is run.
"""

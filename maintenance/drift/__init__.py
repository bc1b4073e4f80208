"""What changed in the frameworks since their source was read; see README.md."""

"""Our own run files as a format."""

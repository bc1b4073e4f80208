"""The releases of the user's tools: named with --at, an image's, installed, or pinned in a file."""

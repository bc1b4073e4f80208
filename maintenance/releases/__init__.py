"""What the arguments of each tool were at every release, as lock files; see README.md."""

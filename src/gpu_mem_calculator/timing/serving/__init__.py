"""The speed of a server: an estimate by measured curves, and an upper bound by roofline."""

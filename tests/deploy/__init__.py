"""The chart, proved: rendered, validated, held to policies, and its pods run as processes."""

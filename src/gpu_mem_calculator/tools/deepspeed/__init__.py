"""DeepSpeed's JSON: read and written."""

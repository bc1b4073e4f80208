"""The file of `trl sft`."""

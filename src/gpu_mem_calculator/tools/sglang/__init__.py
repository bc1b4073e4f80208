"""Reads SGLang's commands and configuration files."""

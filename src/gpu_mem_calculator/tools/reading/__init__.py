"""What readers of commands and files share: the result, keys, options, files, the tools known."""

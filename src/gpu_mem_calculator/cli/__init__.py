"""The command line, one file a command.

It takes words and gives text and an exit code. It may import every room.
"""

"""The same answers for agents, by the Model Context Protocol: six tools with short answers.

`tools.py`: what each tool takes; `answers.py`: its answer, in a calculating process; `server.py`:
the server, on standard input and output or on HTTP.
"""

"""Commands and files of other tools, one folder each, read and written.

`read.py` is the door: it takes text, a file, a command or a mapping and gives a run file with what
was honoured, free, limited or not understood. No bytes are computed here. It may import `runfile`
and what is below.
"""

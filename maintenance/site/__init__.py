"""Builds the page as plain files, which need no server: `python -m maintenance.site FOLDER`.

Python runs in the browser there: Pyodide, with this package as a file of compiled modules.
"""

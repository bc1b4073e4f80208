"""Builds the documents as a site that can be searched: `python -m maintenance.documents FOLDER`."""

"""The version of the JSON of every answer, of commands and of the service.

A version only adds fields: one that is renamed or means something else makes another version.
"""

SCHEMA_VERSION = 2

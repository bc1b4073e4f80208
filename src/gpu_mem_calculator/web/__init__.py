"""The page and its service.

It takes requests and gives the answers of the commands as JSON, or pages, without a socket to
anywhere else. It may import `report` and what is below.
"""

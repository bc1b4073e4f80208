"""How long a step or a request takes, from what cards, hosts and links can do.

It takes a run and measured curves and gives seconds with their parts and range. It may import
`serving` and what is below. Here the rooms end that touch no file.
"""

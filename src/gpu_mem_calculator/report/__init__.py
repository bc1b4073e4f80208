"""Answers as text, JSON, HTML and pictures.

It takes results and gives what people read; it computes no byte. It may import `lab` and what is
below.
"""

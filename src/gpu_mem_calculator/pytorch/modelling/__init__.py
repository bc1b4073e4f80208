"""Modelling code of public frameworks, transcribed operation by operation onto the tape."""

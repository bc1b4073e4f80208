"""Programs that people start (transformers.Trainer, TRL, Lightning): their own arguments as keys of
a run file. No bytes are computed here.
"""

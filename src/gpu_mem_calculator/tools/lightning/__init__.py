"""Lightning 2.6.6: a module around a model of transformers, under L.Trainer."""

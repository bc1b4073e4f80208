"""TrainingArguments of transformers, and a run as a program of Hugging Face's tools."""

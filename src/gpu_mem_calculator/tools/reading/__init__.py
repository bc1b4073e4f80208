"""What readers of commands and files share: the result, keys, options, files, the tools known."""

SCRIPTS = (".sh", ".bash", ".sbatch", ".slurm", ".sub")  # endings of shell scripts
PYTHON = ".py"
MODELFILE = "Modelfile"  # how the name of Ollama's file begins
# What a source is given as: a command is one text, words are its parts.
PATH, TEXT, COMMAND, WORDS, DATA = "path", "text", "command", "words", "data"

"""What readers of commands and files share: the result, keys, options, files, the tools known."""

SCRIPTS = (".sh", ".bash", ".sbatch", ".slurm", ".sub")  # endings of shell scripts
MODELFILE = "Modelfile"  # how the name of Ollama's file begins

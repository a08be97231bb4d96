"""What a person or a program sees of a run. Everything here reads events and nothing else."""

"""What the model is told of a repository before the first question."""

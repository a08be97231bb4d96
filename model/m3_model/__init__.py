"""What the weights of MiniMax M3 mean: configuration, checkpoints, text decoder, tokenizer."""

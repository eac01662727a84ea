"""The bundled checkpoints, and the programs that made them: corpus, tokenizer, training."""

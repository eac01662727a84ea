"""The bundled checkpoints and the programs that made them: corpus, tokenizer, training. README.md is the model card."""

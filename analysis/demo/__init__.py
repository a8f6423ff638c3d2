"""The demo model: corpora, tokenizer, builder, checkpoint."""

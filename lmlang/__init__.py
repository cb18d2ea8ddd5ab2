"""lmlang: structured-generation programs around language models, with a runtime built for them."""

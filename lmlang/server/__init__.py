"""HTTP over any Backend: our own routes, OpenAI's and SGLang's, in one app (extra ``server``)."""

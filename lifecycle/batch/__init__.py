"""The generate job: prompts in, answers out, each exactly once."""

"""The server at work: who may come in, what they may say, and where it goes."""

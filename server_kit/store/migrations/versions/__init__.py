"""One file a step, named for its number and what it changes."""

"""What the commands of `covey server` find out and show; each is a function one can call."""

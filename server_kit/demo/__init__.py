"""`covey demo`: the whole system on one machine, with made-up people and real everything else."""

"""What `leasekeeper doctor` makes of an installation and a fleet. Pure: facts in, a verdict out; others measure."""

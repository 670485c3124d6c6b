"""The checks of `leasekeeper doctor`, of an installation and of a fleet. Pure: facts in, a verdict
out; others measure."""

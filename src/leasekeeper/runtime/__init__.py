"""The only home of loops, signals and clocks: what keeps leases alive, and sweeps up after them."""

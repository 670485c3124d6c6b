"""The files that `leasekeeper init` writes, as they are written (`gitignore` gets its dot then): data, not code."""

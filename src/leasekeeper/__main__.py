"""`python -m leasekeeper`: the `leasekeeper` program, for those who start it by the interpreter."""

from leasekeeper.cli import main

if __name__ == "__main__":
    main()

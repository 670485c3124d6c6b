"""`python -m leasehold`: the `leasehold` program, for those who start it by the interpreter."""

from leasehold.cli import main

if __name__ == "__main__":
    main()

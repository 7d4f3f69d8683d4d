"""`python -m lockstep` is the command `lockstep`."""

from lockstep.command import main

if __name__ == "__main__":
    main()

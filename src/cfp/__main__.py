"""`python -m cfp` is `cfp`."""

from cfp.cli import main

if __name__ == "__main__":
    main()

"""`python -m oodml`, and with it `torchrun ... -m oodml train ...`."""

from oodml.cli import main

if __name__ == "__main__":
    main()

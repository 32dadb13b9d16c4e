"""`python -m deepbuild`."""

from deepbuild.cli import main

if __name__ == "__main__":
    main()

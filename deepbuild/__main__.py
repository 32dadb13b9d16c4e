"""`python -m deepbuild`, and the program `deepbuild`."""

import signal


def start() -> None:
    """Run a command. Until it is loaded there is nothing to put in order, and no traceback to show
    for a Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from deepbuild.cli import main

    main()


if __name__ == "__main__":
    start()

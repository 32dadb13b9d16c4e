"""Starts a program that ends with whoever started it, and that holds a lock as long as it, or
anything that it started, lives. Arguments: the process id of who starts it, the file to lock, then
the program with its arguments.

Killed outright, deepbuild cannot end its ninja; and a second ninja in one folder would spoil what
the first one notes.
"""

import ctypes
import fcntl
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):  # it has ended already
        sys.exit(1)
    handle = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT, 0o644)
    os.set_inheritable(handle, True)
    fcntl.flock(handle, fcntl.LOCK_EX)
    os.execv(sys.argv[3], sys.argv[3:])


if __name__ == "__main__":
    main()

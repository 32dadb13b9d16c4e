"""Runs a program that sees a folder at another path as well, in a mount namespace of its own, and
works there. Arguments: the folder, the other path, then the program with its arguments.

What compilers write of paths into their results is then the same wherever the folder lies. No right
is needed for it where users may have namespaces of their own (user_namespaces(7)).
"""

import ctypes
import os
import stat
import sys

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000  # linux/sched.h
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000  # linux/mount.h

LIBC = ctypes.CDLL(None, use_errno=True)


def checked(name: str, *arguments: object) -> None:
    if getattr(LIBC, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, "%s: %s" % (name, os.strerror(number)))


def write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def unshare() -> None:
    """Have mounts of our own; as the same user, who owns a namespace if need be."""
    user, group = os.geteuid(), os.getegid()
    try:
        checked("unshare", CLONE_NEWNS)
    except OSError:
        checked("unshare", CLONE_NEWNS | CLONE_NEWUSER)
        write("/proc/self/setgroups", "deny")
        write("/proc/self/uid_map", "%d %d 1" % (user, user))
        write("/proc/self/gid_map", "%d %d 1" % (group, group))


def require_ours(path: str) -> None:
    """Who can remove a folder takes away what is mounted there, in every namespace, and could put
    other sources in its place; a link would lead the mount elsewhere."""
    found, above = os.lstat(path), os.stat(os.path.dirname(path))
    if not stat.S_ISDIR(found.st_mode):
        raise OSError("it is no folder")
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
        raise OSError("it belongs to another user, or others may write it")
    if above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX:
        raise OSError("others may remove it (the folder above has no sticky bit)")


def main() -> None:
    folder, path, argv = os.path.realpath(sys.argv[1]), sys.argv[2], sys.argv[3:]
    try:
        if not os.path.lexists(path):
            os.mkdir(path, 0o755)
        require_ours(path)
        unshare()
        checked("mount", None, b"/", None, MS_REC | MS_PRIVATE, None)
        checked("mount", os.fsencode(folder), os.fsencode(path), None, MS_BIND | MS_REC, None)
        os.chdir(path)
        if not os.path.samefile(folder, "."):
            raise OSError("it is not the same folder there")
    except OSError as error:
        sys.exit("no namespace with %s at %s: %s" % (folder, path, error))
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    main()

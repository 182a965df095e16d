"""Replaces itself with a command that dies with its parent; on request without root's identity.

Run by path with `-I -S`: it must start in a few milliseconds and imports nothing of this package.
usage: exec_child.py PARENT_PID DEATH_SIGNAL (plain|namespace|nobody) COMMAND…
"""

import ctypes
import os
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1  # prctl(2)
PR_SET_KEEPCAPS = 8
PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP = 28, 1 << 2
PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 47, 2
CAP_DAC_OVERRIDE = 1  # capabilities(7)
CAPABILITY_VERSION_3 = 0x20080522  # capset(2)
CLONE_NEWUSER = 0x10000000  # unshare(2)
NOBODY = 65534
CANNOT_UNSHARE = 97


def main(argv: list[str]) -> None:
    parent, death_signal, identity, *command = argv
    libc = ctypes.CDLL(None, use_errno=True)
    if identity == "namespace":
        _enter_user_namespace(libc)
    elif identity == "nobody":
        _become_nobody(libc)
    # After the change of identity: the kernel clears the death signal on it.
    if libc.prctl(PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if int(parent) and os.getppid() != int(parent):
        sys.exit(0)  # the parent died before the signal was armed
    os.execvp(command[0], command)


def _become_nobody(libc: ctypes.CDLL) -> None:
    """Another user, as PostgreSQL demands, who may still pass folders of mode 0700: the wheel's binaries and the data
    lie below root's own."""
    # Or access(2), by which PostgreSQL's tools look for each other, would not count the capability.
    libc.prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0)
    libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    bit = 1 << CAP_DAC_OVERRIDE
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)(bit, bit, bit, 0, 0, 0)  # effective, permitted, inheritable; twice 32 bits
    if libc.capset(header, data) != 0:
        return  # without the capability; what it cannot reach then, it names
    libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_OVERRIDE, 0, 0)


def _enter_user_namespace(libc: ctypes.CDLL) -> None:
    """Seen from inside this is nobody; its files stay root's, and root is not what the command runs as."""
    if libc.unshare(CLONE_NEWUSER) != 0:
        sys.stderr.write("unshare(CLONE_NEWUSER) is forbidden here\n")
        sys.exit(CANNOT_UNSHARE)
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{NOBODY} 0 1")
        Path("/proc/self/gid_map").write_text(f"{NOBODY} 0 1")
    except OSError as error:
        sys.stderr.write(f"the user namespace cannot be set up: {error}\n")
        sys.exit(CANNOT_UNSHARE)


if __name__ == "__main__":
    main(sys.argv[1:])

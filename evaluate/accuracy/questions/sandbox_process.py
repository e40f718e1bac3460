"""Runs one program that a model wrote. Called by path inside new namespaces; imports nothing of
ours.

The namespaces have no network and no other processes. Before the program starts, the root folder
becomes an empty one in memory that shows only Python's own files, read-only; all capabilities are
dropped; processes, memory, time and files are limited. The request comes on standard input. The
events `ready` and the request's token, after a program that ran to its end, go to the pipe whose
number is the last argument.
"""

import ctypes
import json
import os
import platform
import resource
import struct
import sys
from pathlib import Path

# From linux/mount.h, linux/prctl.h, linux/seccomp.h, linux/audit.h and linux/sched.h.
MS_BIND, MS_REC, MS_NOSUID, MS_NODEV, MNT_DETACH = 4096, 16384, 2, 4, 2
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
READ_ONLY, NO_SUID, NO_DEVICES = 1, 2, 4
SYS_MOUNT_SETATTR = 442
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 22, 38
SECCOMP_MODE_FILTER, CAPABILITY_VERSION = 2, 0x20080522
ALLOW, REFUSE_EPERM, REFUSE_ENOSYS, KILL = 0x7FFF0000, 0x50001, 0x50026, 0x80000000
CLONE_THREAD, CLONE3 = 0x10000, 435
LOAD, IF_EQUAL, IF_AT_LEAST, IF_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
OTHER_CALLS = 0x40000000  # numbers of x86's second system call table begin here

ARCHITECTURES = {
    # audit number, pivot_root, clone, and calls that make processes, programs or namespaces
    "x86_64": (0xC000003E, 155, 56, (57, 58, 59, 322, 272, 308, 101)),
    "aarch64": (0xC00000B7, 41, 220, (221, 281, 97, 268, 117)),
}
READY = b"ready\n"
SHOWN = ("/usr", "/lib", "/lib64", "/lib32")
libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(__doc__)
        return
    pipe = int(sys.argv[-1])
    request = json.loads(sys.stdin.buffer.read())
    nowhere = os.open("/dev/null", os.O_RDWR)
    _hide_files(sys.argv[1], request["file_megabytes"])
    _limit(request)
    _drop_rights()
    os.write(pipe, READY)
    _close_output(nowhere, pipe)
    exec(compile(request["program"], "answer.py", "exec"), {"__name__": "__main__"})
    os.write(pipe, request["token"].encode())
    os._exit(0)  # no exit handlers of the program


def _call(name: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None) -> None:
    encoded = [text.encode() if text is not None else None for text in (source, target, kind)]
    last = options.encode() if options is not None else None
    _call(f"mount {target}", libc.mount(*encoded, ctypes.c_ulong(flags), last))


def _hide_files(root: str, megabytes: int) -> None:
    """Makes `root` the root folder: empty and in memory, with Python's own files read-only."""
    _mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, f"size={megabytes}m,nr_inodes=1024")
    for path in (*map(Path, SHOWN), Path(sys.base_prefix).resolve()):
        inside = Path(f"{root}{path}")
        if path.is_symlink():
            inside.symlink_to(path.readlink())
        elif path.is_dir() and not inside.is_dir():
            inside.mkdir(parents=True)
            _mount(str(path), str(inside), None, MS_BIND | MS_REC, None)
            attributes = struct.pack("QQQQ", READ_ONLY | NO_SUID | NO_DEVICES, 0, 0, 0)
            changed = libc.syscall(
                SYS_MOUNT_SETATTR, AT_FDCWD, bytes(inside), AT_RECURSIVE, attributes, 32
            )
            _call(f"mount_setattr {path}", changed)
    Path(root, "work").mkdir()
    os.chdir(root)
    _call("pivot_root", libc.syscall(ARCHITECTURES[platform.machine()][1], b".", b"."))
    _call("umount2", libc.umount2(b".", MNT_DETACH))
    os.chdir("/work")


def _close_output(nowhere: int, pipe: int) -> None:
    """What the program prints goes nowhere: a pipe that nobody reads would stop it."""
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    os.closerange(3, pipe)
    os.closerange(pipe + 1, 1024)


def _limit(request: dict[str, int]) -> None:
    limits = {
        resource.RLIMIT_CPU: request["cpu_seconds"],
        resource.RLIMIT_AS: request["memory_megabytes"] << 20,
        resource.RLIMIT_FSIZE: request["file_megabytes"] << 20,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_NPROC: request["processes"],
        resource.RLIMIT_CORE: 0,
    }
    for limit, most in limits.items():
        resource.setrlimit(limit, (most, most))


def _drop_rights() -> None:
    """Drops all capabilities, then refuses new processes, programs and namespaces. Limits on the
    number of processes do not hold for root, so a filter of system calls refuses them, too."""
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    header = ctypes.create_string_buffer(struct.pack("Ii", CAPABILITY_VERSION, 0))
    _call("capset", libc.capset(header, bytes(24)))
    steps = _filter()
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(
        struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code))
    )
    _prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(program))


def _prctl(option: int, *values: int) -> None:
    padded = [*values, 0, 0, 0, 0][:4]
    _call(f"prctl {option}", libc.prctl(option, *map(ctypes.c_ulong, padded)))


def _filter() -> list[tuple[int, int, int, int]]:
    """The steps of the filter, as classic BPF: code, jump if true, jump if false, value."""
    audit, _, clone, refused = ARCHITECTURES[platform.machine()]
    steps = [
        (LOAD, 0, 0, 4),  # the architecture
        (IF_EQUAL, 1, 0, audit),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, 0),  # the number of the call
        (IF_AT_LEAST, 0, 1, OTHER_CALLS),
        (RETURN, 0, 0, KILL),
        (IF_EQUAL, 0, 1, CLONE3),  # its flags cannot be read; libc falls back to clone
        (RETURN, 0, 0, REFUSE_ENOSYS),
    ]
    for number in refused:
        steps += [(IF_EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE_EPERM)]
    return [
        *steps,
        (IF_EQUAL, 0, 3, clone),
        (LOAD, 0, 0, 16),  # its flags: a thread of the same process is no new process
        (IF_ANY_BIT, 1, 0, CLONE_THREAD),
        (RETURN, 0, 0, REFUSE_EPERM),
        (RETURN, 0, 0, ALLOW),
    ]


if __name__ == "__main__":
    main()

"""filtered.py PROGRAM ARGUMENTS…: runs a Python program with a seccomp filter that refuses process_vm_readv."""
import ctypes
import os
import platform
import struct
import sys

NUMBER = {"x86_64": 310, "aarch64": 270}[platform.machine()]
LOAD, IF_EQUAL, RETURN = 0x20, 0x15, 0x06
REFUSED, ALLOWED = 0x0005_0001, 0x7FFF_0000  # SECCOMP_RET_ERRNO with EPERM, SECCOMP_RET_ALLOW
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, MODE_FILTER = 38, 22, 2

code = b"".join(struct.pack("=HBBI", *line) for line in [
    (LOAD, 0, 0, 0), (IF_EQUAL, 0, 1, NUMBER), (RETURN, 0, 0, REFUSED), (RETURN, 0, 0, ALLOWED)])
lines = ctypes.create_string_buffer(code)
program = ctypes.create_string_buffer(struct.pack("=H6xQ", 4, ctypes.addressof(lines)))
prctl = ctypes.CDLL(None, use_errno=True).prctl
prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
if prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or prctl(PR_SET_SECCOMP, MODE_FILTER, ctypes.addressof(program), 0, 0):
    sys.exit(77)
os.execv(sys.executable, [sys.executable] + sys.argv[1:])

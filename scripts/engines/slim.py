"""Overwrites device code with zeroes, in place, in a library that is only used on GPUs of one architecture.

A CUDA library contains each kernel several times: as machine code (cubins) for several architectures and as PTX. They are
grouped in fatbins inside ELF sections named *fatbin*. Of each fatbin, this script keeps what the driver would load: the
cubins of sm_ARCH; else cubins of the same major version that run on sm_ARCH; else the newest PTX up to ARCH, if PTX is
wanted. All other entries become zeroes, which compress well. No offset or header changes, so that the library loads as
before, but it works only on sm_ARCH."""
import collections
import mmap
import os
import struct

MAGIC = b"\x50\xed\x55\xba"
PTX, CUBIN = 1, 2
SHT_NOBITS = 8


def fatbin_sections(elf):
    """Yields (offset, size) of the sections of a 64-bit ELF file that contain fatbins."""
    table, = struct.unpack_from("<Q", elf, 0x28)
    entry_size, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, table + i * entry_size) for i in range(count)]
    names = headers[names_index][4]
    for name_at, kind, _, _, offset, size, *_ in headers:
        name = elf[names + name_at:elf.find(b"\0", names + name_at)].decode()
        if "fatbin" in name and "Segment" not in name and kind != SHT_NOBITS:
            yield offset, size


def fatbins(elf, offset, size):
    """Yields (start, end) of the contents of each fatbin in a section."""
    at, end = offset, offset + size
    while (at := elf.find(MAGIC, at, end)) >= 0:
        version, header, length = struct.unpack_from("<HHQ", elf, at + 4)
        if version == 1 and header == 16 and at + 16 + length <= end:
            yield at + 16, at + 16 + length
            at += 16 + length
        else:
            at += 4  # these bytes only look like the begin of a fatbin


def entries(elf, at, end):
    """Yields (kind, arch, offset, size) of each entry of one fatbin."""
    while at + 64 <= end:
        kind, _, header, size = struct.unpack_from("<HHIQ", elf, at)
        arch, = struct.unpack_from("<I", elf, at + 28)
        if kind == 0 or header < 32 or at + header + size > end:
            return
        yield kind, arch, at + header, size
        at += header + size


def wanted(found, arch, ptx):
    cubins = [e for e in found if e[0] == CUBIN and e[1] == arch]
    cubins = cubins or [e for e in found if e[0] == CUBIN and e[1] // 10 == arch // 10 and e[1] <= arch]
    if cubins or not ptx:
        return cubins
    return sorted((e for e in found if e[0] == PTX and e[1] <= arch), key=lambda e: e[1], reverse=True)[:1]


def slim(path, arch=90, ptx=True):
    """Zeroes the unneeded device code in a file. Returns a line that describes what was kept and what was
    zeroed."""
    kept, gone, number = collections.Counter(), collections.Counter(), 0
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as elf:
        for section in list(fatbin_sections(elf)):
            for fatbin in fatbins(elf, *section):
                number += 1
                found = list(entries(elf, *fatbin))
                keep = {e[2] for e in wanted(found, arch, ptx)}
                for kind, sm, offset, size in found:
                    if offset in keep or kind not in (PTX, CUBIN):
                        kept[kind, sm] += size
                    else:
                        gone[kind, sm] += size
                        elf[offset:offset + size] = bytes(size)
    names = {PTX: "PTX", CUBIN: "sm"}
    parts = ", ".join(f"{names.get(k, k)}_{sm} {n / 1e6:.1f} MB" for (k, sm), n in sorted(kept.items())) or "nothing"
    return f"{os.path.basename(path)}: {number} fatbins, kept {parts}; zeroed {sum(gone.values()) / 1e6:.1f} MB"


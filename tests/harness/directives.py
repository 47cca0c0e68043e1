# SPDX-License-Identifier: PostgreSQL
"""Which directives an nginx knows, and where each may stand: read from its program (a 64-bit ELF), where each is an ngx_command_t: the name's length, its
address, and bits that say where."""

import re
import struct

HTTP, SERVER, LOCATION, UPSTREAM = 0x02000000, 0x04000000, 0x08000000, 0x10000000  # NGX_HTTP_MAIN_CONF, ...
RELATIVE = {8, 1027}  # R_X86_64_RELATIVE, R_AARCH64_RELATIVE
NAME = re.compile(rb"[a-z][a-z0-9_]*\0")
LOADED, RELOCATIONS = 1, 4  # PT_LOAD, SHT_RELA


class Program:
    def __init__(self, path):
        with open(path, "rb") as program:
            self.data = program.read()
        assert self.data[:6] == b"\x7fELF\x02\x01", f"{path} is no program of a 64-bit machine"
        self.segments = [self.read("<QQ8xQ", at + 8) for at, kind in self.table(0x20, 0x36, "<I") if kind == LOADED]
        self.sections = [self.read("<QQ", at + 24) for at, kind in self.table(0x28, 0x3A, "<4xI") if kind == RELOCATIONS]

    def read(self, form, at):
        return struct.unpack_from(form, self.data, at)

    def table(self, start, size, form):
        """Of headers: where each is, and its kind."""
        (start,), (size, count) = self.read("<Q", start), self.read("<HH", size)
        return [(start + n * size, self.read(form, start + n * size)[0]) for n in range(count)]

    def place(self, address):
        """In the file; None: not from there."""
        for offset, start, size in self.segments:
            if start <= address < start + size:
                return offset + address - start
        return None

    def pointers(self):
        """(where a pointer is, what it points to), as the loader makes them."""
        for start, size in self.sections:
            for at in range(start, start + size, 24):
                address, kind, target = self.read("<QQq", at)
                if kind & 0xFFFFFFFF in RELATIVE:
                    yield address, target


def directives_of(path):
    """{name: bits of where it may stand}, of all modules that the program itself has."""
    program, found = Program(path), {}
    for address, target in program.pointers():
        at, text = program.place(address - 8), program.place(target)
        if at is None or text is None:
            continue
        length, _, kind = program.read("<QQQ", at)
        name = program.data[text : text + min(length, 64) + 1]
        if length < 64 and NAME.fullmatch(name) and 0 < kind < 1 << 32 and kind >> 24:
            found[name[:-1].decode()] = found.get(name[:-1].decode(), 0) | kind
    return found

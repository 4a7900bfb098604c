"""What a shared library for Linux asks of the machine it is loaded on, read off the file."""

import re
import struct

DYNAMIC, DYNSYM, VERSIONS_NEEDED = 6, 11, 0x6FFFFFFE  # section types


class Library:
    def __init__(self, data):
        self.data = data
        at, = struct.unpack_from("<Q", data, 0x28)
        size, count = struct.unpack_from("<HH", data, 0x3A)
        self.sections = [struct.unpack_from("<IIQQQQIIQQ", data, at + i * size) for i in range(count)]

    def _of_type(self, kind):
        """(start, end, start of its strings) of each section of that type."""
        for section in self.sections:
            if section[1] == kind:
                yield section[4], section[4] + section[5], self.sections[section[6]][4]

    def _text(self, at):
        return self.data[at:self.data.index(b"\0", at)].decode()

    def imports(self):
        """The symbols that others must have."""
        names = []
        for begin, end, strings in self._of_type(DYNSYM):
            for entry in range(begin, end, 24):
                name, _, _, where = struct.unpack_from("<IBBH", self.data, entry)
                if name and where == 0:
                    names.append(self._text(strings + name))
        return names

    def needed(self):
        """The libraries it is linked to."""
        names = []
        for begin, end, strings in self._of_type(DYNAMIC):
            for entry in range(begin, end, 16):
                tag, value = struct.unpack_from("<qQ", self.data, entry)
                if tag == 1:  # DT_NEEDED
                    names.append(self._text(strings + value))
        return names

    def glibc(self):
        """The oldest glibc that has everything, as (2, 17); None where it asks for none."""
        found = []
        for begin, _, strings in self._of_type(VERSIONS_NEEDED):
            more = 1
            while more:
                _, count, _, first, more = struct.unpack_from("<HHIII", self.data, begin)
                at = begin + first
                for _ in range(count):
                    _, _, _, name, step = struct.unpack_from("<IHHII", self.data, at)
                    version = re.fullmatch(r"GLIBC_([\d.]+)", self._text(strings + name))
                    if version:
                        found.append(tuple(int(part) for part in version.group(1).split(".")))
                    at += step
                begin += more
        return max(found, default=None)


def read(path):
    """None for another format than 64-bit little-endian ELF."""
    with open(path, "rb") as f:
        data = f.read()
    return Library(data) if data[:6] == b"\x7fELF\x02\x01" else None

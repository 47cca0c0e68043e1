# SPDX-License-Identifier: PostgreSQL
"""What a binary says of its own hardening, read with readelf (binutils, which every C compiler brings)."""

import re
import subprocess

# Each word of the compiler's that has to be in every compilation unit. gcc notes its options in the debug information; clang does not.
UNIT_OPTIONS = ("-fstack-protector-strong", "-fstack-clash-protection", "-ftrivial-auto-var-init=zero")
BRANCHES = {"x86_64": "-fcf-protection=full", "aarch64": "-mbranch-protection=standard"}
BRANCH_NOTE = {"x86_64": "x86 feature: IBT, SHSTK", "aarch64": "AArch64 feature: BTI, PAC"}


def readelf(path, *options):
    return subprocess.run(["readelf", "-W", *options, path], capture_output=True, text=True, check=True).stdout


def units(path):
    """The options of each compilation unit, as the compiler noted them; of our own, which are C11 or the module's, not of crt1.o."""
    said = readelf(path, "--debug-dump=info", "--dwarf-depth=1")
    return [line.split("): ", 1)[-1] for line in said.splitlines() if "DW_AT_producer" in line]


def last_word(unit, option):
    """What this unit's compiler was told last about the matter of the option: a later word takes back an earlier one."""
    matter = re.escape(option[2:].split("=")[0].removesuffix("-strong"))
    said = re.findall(rf"(?<!\S)-[fm](?:no-)?{matter}\S*", unit)
    return said[-1] if said else None


def imported(path):
    return {match[1] for match in re.finditer(r"UND (\w+)@", readelf(path, "--dyn-syms"))}


def exported(path):
    return set(re.findall(r"(?:GLOBAL|WEAK)\s+DEFAULT\s+\d+ (\w+)", readelf(path, "--dyn-syms")))


def needed(path):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", readelf(path, "-d"))


def marks_branches(machine):
    """The linker marks a binary only where all that it links is marked, the C library's own start files too. Debian's are not."""
    start = subprocess.run(["gcc", "-print-file-name=crti.o"], capture_output=True, text=True, check=True).stdout.strip()
    return machine in BRANCH_NOTE and BRANCH_NOTE[machine] in readelf(start, "-n")


def weaknesses(path, machine, optimised=True):
    """What is missing in this program or library: sentences, none where all is there."""
    head, segments, dynamic, notes = (readelf(path, option) for option in ("-h", "-l", "-d", "-n"))
    is_program = "INTERP" in segments
    found = []
    if "Type:                              DYN" not in head or (is_program and not re.search(r"FLAGS_1.*\bPIE\b", dynamic)):
        found.append("not position-independent")
    if "GNU_RELRO" not in segments or not re.search(r"\(FLAGS\).*BIND_NOW|\(FLAGS_1\).*\bNOW\b", dynamic):
        found.append("not full RELRO")
    stack = re.search(r"GNU_STACK.*", segments)
    if stack is None or "E" in stack[0].split()[-2]:
        found.append("executable stack")
    if any(re.search(r"\bRWE\b", line) for line in segments.splitlines() if "LOAD" in line):
        found.append("memory that is writable and executable")
    if "TEXTREL" in dynamic:
        found.append("text relocations")
    if re.search(r"\((RPATH|RUNPATH)\)", dynamic):
        found.append("looks for libraries in a directory of the build")
    if marks_branches(machine) and BRANCH_NOTE[machine] not in notes:
        found.append("no protection of branches")
    if "__stack_chk_fail" not in imported(path):
        found.append("no stack protector")
    if optimised and not any(name.endswith("_chk") for name in imported(path)):
        found.append("no fortified function")
    options = [unit for unit in units(path) if unit.startswith("GNU C") and not unit.startswith("GNU AS")]
    for option in (*UNIT_OPTIONS, *([BRANCHES[machine]] if machine in BRANCHES else [])):
        if option == "-ftrivial-auto-var-init=zero" and not optimised:
            continue
        without = [unit for unit in options if last_word(unit, option) != option]
        if without:
            found.append(f"{len(without)} of {len(options)} units without {option}")
    return found

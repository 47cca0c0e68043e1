# SPDX-License-Identifier: PostgreSQL
"""pgonce_native in a database of an ordinary private server: its script, with the library from where it was built, so that no folder of the server is
touched. harness.extension has a server for which CREATE EXTENSION works."""

import atexit
import functools
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

from .mutation import replaced
from .postgres import ROOT
from .release import VERSION

SCRIPT = ROOT / f"native/pgonce_native--{VERSION}.sql"


def library():
    return pathlib.Path(os.environ.get("PGONCE_BUILD") or ROOT / "build").resolve() / "native/pgonce_native.so"


def native_script(path=None):
    """What CREATE EXTENSION runs, for this library."""
    lines = [line for line in SCRIPT.read_text().splitlines() if not line.startswith("\\")]
    return "\n".join(lines).replace("MODULE_PATHNAME", str(path or library()))


def install_native(database, path=None):
    database.execute(native_script(path))


def answered(connection):
    """How many calls of this session the library has answered itself."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT once_native.answered()")
        return cursor.fetchone()[0]


def compiler():
    headers = subprocess.run(["pg_config", "--includedir-server"], capture_output=True, text=True, check=True).stdout.strip()
    return ["cc", "-fPIC", "-O1", "-g", "-std=gnu11", "-w", "-fvisibility=hidden", "-isystem", headers]


def compiled(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the mutant does not compile:\n{done.stderr[-4000:]}")


def native_texts():
    texts = {path.name: path.read_text() for path in (ROOT / "native").glob("*.[ch]")}
    return texts | {"mirrored.c": (library().parent / "mirrored.c").read_text()}


@functools.cache
def plain_objects():
    """A folder with the objects of all files as they are, once for the process: most mutants differ from them in one."""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="pgonce-native-objects-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    for name, text in native_texts().items():
        (directory / name).write_text(text)
    for source in directory.glob("*.c"):
        compiled([*compiler(), "-c", source, "-o", source.with_suffix(".o")])
    return directory


def mutant(directory, *changes):
    """The library with (file, old, new) replaced in it, built in this directory, which the server must be able to read."""
    directory = pathlib.Path(directory)
    texts = native_texts()
    for file, old, new in changes:
        texts[file] = replaced(texts[file], old, new, file)
    for name, text in texts.items():
        (directory / name).write_text(text)
    changed = {file for file, _, _ in changes}
    plain = set() if any(file.endswith(".h") for file in changed) else texts.keys() - changed
    parts = [(plain_objects() / name).with_suffix(".o") if name in plain else directory / name for name in sorted(texts) if name.endswith(".c")]
    made = directory / "pgonce_native.so"
    compiled([*compiler(), "-shared", "-o", made, *parts])
    made.chmod(0o755)  # the server is another user
    return made


# What is no call that may fail: reports of errors, C's own library, and what only the loader calls.
NO_POINT = re.compile(r"err[a-z_]+|pg_[sv]?n?printf|__.*|mem\w+|str\w+|CacheRegister\w+|DefineCustom\w+|InvalidateSystemCaches")
# Where PostgreSQL itself may learn what others have changed: it opens a table, or looks into a catalogue.
MAY_FORGET = re.compile(r".*SysCache.*|.*_open|get_\w+|LockRelationOid|lookup_rowtype_tupdesc|\w*aclcheck|CatalogTuple\w+|\w*nextval\w*|fmgr_info\w*|table_\w+|index_beginscan")
TRAMPOLINE = """
.globl __wrap_{name}
.type __wrap_{name}, @function
__wrap_{name}:
    push %rax; push %rdi; push %rsi; push %rdx; push %rcx; push %r8; push %r9
    lea name_{name}(%rip), %rdi
    mov ${may_forget}, %esi
    call native_point
    pop %r9; pop %r8; pop %rcx; pop %rdx; pop %rsi; pop %rdi; pop %rax
    jmp __real_{name}@PLT
name_{name}: .asciz "{name}"
"""


def with_points(directory):
    """The library, and before each of its calls of the server a call of native_point (tests/native/points.c): for x86-64."""
    directory = pathlib.Path(directory)
    plain = mutant(directory)
    listed = subprocess.run(["readelf", "-rW", str(plain)], capture_output=True, text=True, check=True).stdout
    names = sorted(set(re.findall(r"R_X86_64_JUMP_SLOT?\s+\S+\s+(\w+)", listed)))
    names = [name for name in names if not NO_POINT.fullmatch(name)]
    texts = [TRAMPOLINE.format(name=name, may_forget=int(MAY_FORGET.fullmatch(name) is not None)) for name in names]
    (directory / "trampolines.s").write_text(".text\n.hidden native_point\n" + "".join(texts) + '.section .note.GNU-stack,"",@progbits\n')
    headers = subprocess.run(["pg_config", "--includedir-server"], capture_output=True, text=True, check=True).stdout.strip()
    wrap = [f"-Wl,--wrap={name}" for name in names]
    sources = [str(directory / "trampolines.s"), *(str(path) for path in sorted(directory.glob("*.c")))]
    command = ["cc", "-shared", "-fPIC", "-O1", "-std=gnu11", "-w", "-fvisibility=hidden", "-isystem", headers, "-o", str(plain), *wrap, *sources]
    # Apart, since what it calls is not to be wrapped.
    apart = ["cc", "-c", "-fPIC", "-O1", "-std=gnu11", "-fvisibility=hidden", "-isystem", headers, "-o", str(directory / "points.o"), str(ROOT / "tests/native/points.c")]
    for each in (apart, [*command, str(directory / "points.o")]):
        done = subprocess.run(each, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"the library with points does not compile:\n{done.stderr[-4000:]}")
    return plain, names


ARM = """CREATE FUNCTION once_native.arm(integer, bigint, integer) RETURNS bigint LANGUAGE c AS '{path}', 'native_arm'"""

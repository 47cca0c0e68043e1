# SPDX-License-Identifier: PostgreSQL
"""What is built is hardened: read from the binaries, not from the build files. A compiler option that goes missing in one file is found."""

import json
import platform
import re
import subprocess

import pytest

from harness.nginx import BUILD

from .elf import exported, units, weaknesses

MACHINE = platform.machine()
BINARIES = ("cli/pgonce", "lib/libpgonce.so", "gateway/ngx_http_once_module.so", "examples/payments/payments-example", "examples/handoff/handoff-example")


def options():
    described = json.loads((BUILD / "meson-info/intro-buildoptions.json").read_text())
    return {option["name"]: option["value"] for option in described}


def optimised():
    """A build for a debugger or a sanitizer has neither fortified functions nor variables that are zero from the start."""
    return options()["b_sanitize"] == "none" and options()["optimization"] not in ("plain", "0", "g")


def built(name):
    path = BUILD / name
    if name.startswith("gateway/") and not path.exists():
        pytest.skip("the module is not built: there is no nginx-dev")
    return path


@pytest.mark.plain("what is released has no sanitizer")
@pytest.mark.parametrize("name", BINARIES)
def test_a_binary_is_hardened_in_every_way_and_every_unit(name):
    path = built(name)
    assert len([unit for unit in units(path) if unit.startswith(("GNU C", "clang", "Debian clang"))]) >= 2
    assert weaknesses(path, MACHINE, optimised()) == []


def test_every_file_is_compiled_with_the_highest_level_of_fortified_functions_that_the_compiler_has():
    if not optimised():
        pytest.skip("not in a build without optimisation, nor in one with sanitizers")
    probe = "#include <string.h>\nlevel __USE_FORTIFY_LEVEL\n"
    said = subprocess.run(
        ["gcc", "-E", "-P", "-O2", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3", "-"], input=probe, capture_output=True, text=True, check=True
    ).stdout
    wanted = f"-D_FORTIFY_SOURCE={re.search(r'level ([23])', said)[1]}"
    commands = {each["file"]: each["command"] for each in json.loads((BUILD / "compile_commands.json").read_text())}
    assert len(commands) > 100
    for file, command in commands.items():
        said = [word for word in command.split() if "_FORTIFY_SOURCE" in word]
        assert said and said[-1] == wanted, file


def test_the_module_shows_what_nginx_looks_up_and_nothing_else():
    assert exported(built("gateway/ngx_http_once_module.so")) == {"ngx_modules", "ngx_module_names", "ngx_module_order", "ngx_http_once_module"}


# ---- That the test can fail: a small program, each time without one of the protections.

PROGRAM = """
#include <stdio.h>
#include <string.h>
int main(int count, char **words)
{
	char text[64];
	strcpy(text, words[count - 1]);
	return printf("%s", text) < 0;
}
"""
WHOLE = [
    *("-g", "-O2", "-fPIE", "-pie", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2", "-fstack-protector-strong", "-fstack-clash-protection"),
    *("-ftrivial-auto-var-init=zero", "-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,noexecstack"),
    *({"x86_64": ["-fcf-protection=full"], "aarch64": ["-mbranch-protection=standard"]}.get(MACHINE, [])),
]
TAKEN_OUT = {
    "not position-independent": ["-fno-pie", "-no-pie"],
    "not full RELRO": ["-Wl,-z,lazy"],
    "executable stack": ["-Wl,-z,execstack"],
    "no stack protector": ["-fno-stack-protector"],
    "1 of 1 units without -fstack-protector-strong": ["-fno-stack-protector"],
    "no fortified function": ["-U_FORTIFY_SOURCE"],
    "looks for libraries in a directory of the build": ["-Wl,-rpath,/tmp/build"],
    "1 of 1 units without -fstack-clash-protection": ["-fno-stack-clash-protection"],
    "1 of 1 units without -ftrivial-auto-var-init=zero": ["-ftrivial-auto-var-init=uninitialized"],
}
if MACHINE == "x86_64":
    TAKEN_OUT["1 of 1 units without -fcf-protection=full"] = ["-fcf-protection=none"]


def compiled(directory, *more):
    program = directory / "program"
    command = ["gcc", "-x", "c", "-", "-o", program, *WHOLE, *more]
    subprocess.run(command, input=PROGRAM, text=True, check=True, capture_output=True)
    found = weaknesses(program, MACHINE)
    program.unlink()
    return found


def test_a_program_with_all_protections_passes(tmp_path):
    assert compiled(tmp_path) == []


@pytest.mark.parametrize("missing", TAKEN_OUT)
def test_a_program_without_one_protection_is_found(tmp_path, missing):
    assert missing in compiled(tmp_path, *TAKEN_OUT[missing])

# SPDX-License-Identifier: PostgreSQL
"""Completion of command lines, written from the table of commands and options: what each shell offers, and that nothing of the table is missing."""

import re
import shutil
import subprocess

import pytest

from .command import COMMANDS, PROGRAM

ASK = """
complete_it() {
	COMP_WORDS=("$@")
	COMP_CWORD=$(($# - 1))
	_pgonce
	printf '%s\\n' "${COMPREPLY[@]}"
}
complete_it "$@"
"""


def script(shell):
    return subprocess.run([PROGRAM, "help", "--completion", shell], capture_output=True, text=True, check=True).stdout


def bash(*words, folder="."):
    done = subprocess.run(["bash", "-c", script("bash") + ASK, "bash", "pgonce", *words], capture_output=True, text=True, check=False, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def options_of(command):
    text = subprocess.run([PROGRAM, "help", command], capture_output=True, text=True, check=True).stdout
    return re.findall(r"^  (?:-\w, |    )(--[\w-]+)", text.split("\nOptions:\n")[1].split("\nExit status:")[0], re.M)


def test_bash_offers_commands_options_and_choices():
    assert bash("ga") == ["gateway"] and set(bash("")) == set(COMMANDS)
    assert bash("gateway", "--up") == ["--upstream"]
    assert bash("gateway", "--on-5xx", "") == ["in_doubt", "release", "store"]
    assert bash("parked", "list", "--state", "de") == ["dead", "delayed"] and "in_doubt" in bash("find", "--state", "")
    assert bash("help", "ver") == ["version"]
    assert bash("init", "--dsn", "") == []  # a text: nothing is better than something wrong


def test_bash_offers_files_where_a_file_is_named_and_commands_after_the_dashes(tmp_path):
    (tmp_path / "pgonce.conf").write_text("")
    (tmp_path / "place").mkdir()
    assert bash("relay", "--config", "pg", folder=tmp_path) == ["pgonce.conf"]
    assert bash("dev", "--dir", "p", folder=tmp_path) == ["place"]
    assert "bash" in bash("run", "--scope", "s", "--key", "k", "--", "bas", folder=tmp_path)


@pytest.mark.parametrize("shell, pattern", [("bash", r"\t\t{0}\) words=\"(.*)\" ;;"), ("zsh", r"\t{0}\)\n((?:\t\t.*\n)+)"), ("fish", r"(complete -c pgonce -n '__fish_seen_subcommand_from {0}' .*)")])
@pytest.mark.parametrize("command", COMMANDS)
def test_each_option_of_each_command_is_offered(shell, pattern, command):
    found = " ".join(re.findall(pattern.format(command), script(shell)))
    dashes = "-l " if shell == "fish" else "--"
    missing = [option for option in options_of(command) if not re.search(re.escape(dashes + option[2:]) + r"(?![\w-])", found)]
    assert missing == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_can_read_it(shell, tmp_path):
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "completion").write_text(script(shell))
    done = subprocess.run([shell, "-n", tmp_path / "completion"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_another_shell_is_refused():
    done = subprocess.run([PROGRAM, "help", "--completion", "tcsh"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "bash" in done.stderr

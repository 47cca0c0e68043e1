#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""A counterexample of the model as a timeline: who did what, by the statement's comment in the model, and what changed by it.

    model/trail.py NAME        searches the configuration or mutation for the shortest way to something wrong, and tells it"""
import re
import sys
import tempfile

import check

STEP = re.compile(r"^\s*\d+:\s+proc\s+(\d+) \((:?\w+:?):\d+\) model\.pml:(\d+) \(state \d+\)\s+\[(.*)\]")
CHANGE = re.compile(
    r"^(tx\[\w+\]\.(?:status|event|to\.state|effect)|verdict|answer|outcome|execution|repeatable_read|locked|held|gone\[\w+\]|leapt|ahead|phase|"
    r"horizon_passed|unsteady|over\[\w+\]|forgotten\[.+\]|row\[.+?\]\.(?:state|fence|body|passed|archived)|effects\[.+?\]|told\[.+?\]|visible\[\w+\]|"
    r"rolled_back\[\w+\]|sent\[\w+\]|waiting\[\w+\]|seen\[\w+\]|inbox\[\w+\]|applied\[\w+\]|published_up_to) = ([^=].*)$"
)
WORDS_OF = r"status|event|state|verdict|answer|outcome|phase|inbox\[\w+\]"
# The first comment of a step that says which statement it is.
SAYS = re.compile(r"once\.|COMMIT|BEGIN|ROLLBACK|A lease passes|Clients are gone|proxy_pass|The work|The effect|the effect|acknowledge|clock|broker|delivery")


def words(text, flags, directory):
    """The names of the numbers that spin shows: it counts them from the last one of the first mtype on."""
    plain = check.run(["cc", "-E", "-P", "-x", "assembler-with-cpp", *flags, "model.pml"], directory).stdout
    names = {}
    for declared in re.findall(r"mtype\s*=\s*\{([^}]*)\}", plain):
        each = [name.strip() for name in declared.split(",")]
        offset = len(names)
        names |= {str(offset + len(each) - n): name for n, name in enumerate(each)}
    return names


def comment_of(text, line):
    """What stands in the comment that is nearest above this line, or beside it."""
    for number in range(line - 1, max(line - 40, 0), -1):
        found = re.search(r"/\* (.*?)(?: \*/|$)", text[number])
        if found and found[1].strip():
            return found[1]
    return ""


def describe(output, text, origin, names):
    """Who, which statement, where, what changed: one line for each run of steps of one process."""
    told = []
    for line in output.split("\n"):
        step = STEP.match(line)
        if not step or step[2] == ":init:":
            continue
        who, number, statement = f"{step[2]} {step[1]}", int(step[3]), step[4]
        # What others do on a process's behalf is not what it is about.
        says = comment_of(text, number) if origin[number - 1][0] != "database.pml" or who.startswith("backend") else ""
        begins = SAYS.search(says) and "goto" not in statement
        if not told or told[-1][0] != who or (begins and told[-1][1] and told[-1][1] != says and told[-1][3]):
            told.append([who, says if begins else "", "%s:%s" % origin[number - 1], []])
        elif begins and not told[-1][1]:
            told[-1][1] = says
        change = CHANGE.match(statement)
        if change and change[2] != "0":
            value = names.get(change[2], change[2]) if re.search(rf"({WORDS_OF})$", change[1]) else change[2]
            told[-1][3].append(f"{change[1].replace('(me%1)', '0')} = {value.replace('(me%1)', '0')}")
    return told


def main():
    everything = {each.name: each for each in (*check.SMALL, *check.LARGE, *check.MUTATIONS)}
    if len(sys.argv) != 2 or sys.argv[1] not in everything:
        sys.exit(f"{__doc__}\n\nNAME: {' '.join(everything)}")
    chosen = everything[sys.argv[1]]
    with tempfile.TemporaryDirectory(prefix="pgonce-model-") as directory:
        by_formula = check.formulas_broken_by(chosen)[:1] if not getattr(chosen, "caught_by", "") else []
        found = check.search(chosen, directory, by_formula, shortest=True)[0]
        if not found.errors:
            print(f"{chosen.name}: nothing is wrong in any of {found.states:,} states")
            return
        text, origin = check.flatten(chosen.file)
        played = check.run(["spin", *chosen.flags(), "-t", "-p", "model.pml"], directory)
        for who, says, where, changes in describe(played.stdout, text, origin, words(text, chosen.flags(), directory)):
            if changes:
                print(f"{who:<15} {where:<18} {says[:70]:<71} {', '.join(changes)}")
        print(f"\nviolated: {found.violated}")


if __name__ == "__main__":
    main()

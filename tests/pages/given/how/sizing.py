# SPDX-License-Identifier: PostgreSQL
# The page's figures are those of `pgonce plan` and of the last measurement.
AFTER_SH = r"""
cat > compare.py <<'END'
import json, os, pathlib, re, subprocess
root = pathlib.Path(os.environ["PGONCE_PAGES_ROOT"])
page = (root / "docs/how/sizing.md").read_text()
measured = json.loads((root / "bench/measured.json").read_text())

def row(first):
    (line,) = [line for line in page.split("\n") if line.startswith(f"| {first} |")]
    return line

def holds(first, *figures):
    missing = [figure for figure in figures if figure not in row(first)]
    assert not missing, (first, missing)

for first, more in (("UUIDv7 keys, no body", []), ("with a body of 2 kB", ["--body-bytes", "2kB"]), ("UUIDv4 keys, no body", ["--key-form", "uuidv4"])):
    told = subprocess.run(["pgonce", "plan", "--rate", "100", *more], capture_output=True, text=True, check=True).stdout
    day, week = re.split("Held for", told.split("One day")[1].split("A longer")[0])

    def figure(text, name):
        return re.search(rf"^ +{name} +(\S+ \S+)", text, re.M)[1]

    holds(first, figure(week, "in all"), figure(day, "WAL"), figure(week, "index that should stay in memory"))

def gateway(where, way, connections):
    (found,) = [each for each in measured[where]["measured"] if (each["way"], each["connections"]) == (way, connections)]
    return found

for first, way in (("nginx alone", "plain/unique"), ("new keys", "gateway/unique"), ("replays from the database", "gateway/replay"), ("replays from memory", "cached/replay")):
    each = gateway("gateway", way, 64)
    holds(first, f"{each['per_second']:,.0f}", f"{each['p50_ms']:.1f} ms", f"{each['p99_ms']:.1f} ms")
for first, connections in (("1 connection", 1), ("8", 8), ("64", 64), ("256", 256)):
    for where in ("gateway", "gateway_fsync_2_ms"):
        each = gateway(where, "gateway/unique", connections)
        holds(first, f"{each['per_second']:,.0f}, {each['p50_ms']:.1f} ms")
for name in ("relay/nats", "consume/batches"):
    assert f"{measured['events']['measured'][name]['per_second']:,.0f}" in page, name
END
python3 compare.py
"""

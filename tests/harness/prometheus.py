# SPDX-License-Identifier: PostgreSQL
"""A private Prometheus that scrapes what a test names, and promtool."""

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request

from .broker import Broker, free_port
from .postgres import PATIENCE_S, clean_environment


def program(name):
    found = shutil.which(name)
    if found is None:
        raise RuntimeError(f"{name} is not installed: apt-get install prometheus")
    return found


def promtool(*words, given=""):
    """(exit status, all that it wrote)."""
    done = subprocess.run([program("promtool"), *map(str, words)], input=given, capture_output=True, text=True, check=False, env=clean_environment(),
                          timeout=2 * PATIENCE_S)
    return done.returncode, done.stdout + done.stderr


class Prometheus(Broker):
    """jobs: {name: (host, port)}; rules: the text of a file of rules."""

    name = "prometheus"

    def __init__(self, jobs, rules):
        super().__init__()
        self.port = free_port()
        (self.directory / "rules.yml").write_text(rules)
        scrapes = [{"job_name": job, "static_configs": [{"targets": [f"{host}:{port}"]}]} for job, (host, port) in jobs.items()]
        # JSON is YAML.
        (self.directory / "prometheus.yml").write_text(json.dumps({
            "global": {"scrape_interval": "2s", "evaluation_interval": "1s", "scrape_timeout": "2s"},
            "rule_files": [str(self.directory / "rules.yml")], "scrape_configs": scrapes}))

    def command(self):
        return [program("prometheus"), f"--config.file={self.directory}/prometheus.yml", f"--storage.tsdb.path={self.directory}/data",
                f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn"]

    def is_ready(self):
        try:
            with self.open("/-/ready") as answer:
                return answer.status == 200
        except OSError:
            return False

    def open(self, path, **arguments):
        query = f"?{urllib.parse.urlencode(arguments)}" if arguments else ""
        # Not by the environment's proxies.
        return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"http://127.0.0.1:{self.port}{path}{query}", timeout=PATIENCE_S)

    def ask(self, path, **arguments):
        try:
            with self.open(path, **arguments) as answer:
                told = json.load(answer)
        except urllib.error.HTTPError as refused:
            told = json.load(refused)
        assert told["status"] == "success", told
        return told["data"]

    def query(self, expression):
        """The samples of an instant query."""
        return self.ask("/api/v1/query", query=expression)["result"]

    def firing(self):
        """{(alert, its labels' items)} of what fires now."""
        return [alert["labels"] for alert in self.ask("/api/v1/alerts")["alerts"] if alert["state"] == "firing"]

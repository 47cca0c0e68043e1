# SPDX-License-Identifier: PostgreSQL
"""The version under test, from its one home: meson.build."""

import re

from .postgres import ROOT

VERSION = re.search(r"^  version: '([^']+)'", (ROOT / "meson.build").read_text(), re.M)[1]

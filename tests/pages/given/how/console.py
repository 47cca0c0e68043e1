# SPDX-License-Identifier: PostgreSQL
PORTS = (9481,)
FILES = {"people": "anna:{PLAIN}secret\n"}

# SPDX-License-Identifier: PostgreSQL
EXTENSIONS = True

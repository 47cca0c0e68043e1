# SPDX-License-Identifier: PostgreSQL
BEFORE = "CREATE ROLE shop_app LOGIN; GRANT once_app TO shop_app;"
BEFORE_SH = "mkdir -p $HOME/machine/etc/pgonce"

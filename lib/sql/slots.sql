-- SPDX-License-Identifier: PostgreSQL
SELECT slot, epoch, open FROM once.slots()

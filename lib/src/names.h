/* SPDX-License-Identifier: PostgreSQL */
/* names.h: from the contract's words to the enums; the other way is
 * public. An unknown word is NONE. */
#pragma once

#include "pgonce.h"

once_state state_of_name(const char *name);
once_verdict verdict_of_name(const char *name);

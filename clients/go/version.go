// SPDX-License-Identifier: PostgreSQL

package once

// Version is the release that this client belongs to, and the contract that it was tested with.
const Version = "1.0.0"

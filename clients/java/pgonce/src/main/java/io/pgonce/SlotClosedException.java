// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.postgresql.util.PSQLException;

/**
 * The node does not serve the tenant (P4097), or not now: its slot is closed there. Nothing was committed. Another node may serve it, or the slot is moving:
 * the same call may be made again.
 */
public final class SlotClosedException extends UnavailableException {
    private static final long serialVersionUID = 1L;
    private static final int CAUSES_MAX = 64;
    /** What the contract's DETAIL ends with; a key, which may hold anything, stands before it. */
    private static final Pattern DETAIL = Pattern.compile("slot=(\\d{1,2}) epoch=(\\d{1,18})\\z");

    /** -1: not told. */
    private final int slot;
    /** -1: not told. */
    private final long epoch;

    SlotClosedException(Reason reason, String message, Throwable cause) {
        super(reason, message, cause);
        Matcher told = DETAIL.matcher(detail(cause));
        boolean found = told.find();
        slot = found ? Integer.parseInt(told.group(1)) : -1;
        epoch = found ? Long.parseLong(told.group(2)) : -1;
    }

    private static String detail(Throwable cause) {
        int left = CAUSES_MAX;
        for (Throwable each = cause; each != null && left-- > 0; each = each.getCause()) {
            if (each instanceof PSQLException said && said.getServerErrorMessage() != null && said.getServerErrorMessage().getDetail() != null) {
                return said.getServerErrorMessage().getDetail();
            }
        }
        return "";
    }

    /**
     * The slot of the tenant.
     *
     * @return 0 to 63, or -1 where the driver did not tell
     */
    public int slot() {
        return slot;
    }

    /**
     * The epoch that the slot has at the node which has refused.
     *
     * @return -1 where the driver did not tell
     */
    public long epoch() {
        return epoch;
    }
}

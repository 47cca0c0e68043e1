// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import io.pgonce.OnceException.Reason;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.SQLTimeoutException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import javax.sql.DataSource;

/**
 * Routes each tenant to the node where its slot is open. It asks each node which slots are open there ({@code once.slots()}), at first use and after each refusal,
 * and any node for the slot of a tenant ({@code once.slot_of}). Calls at the same time share an inquiry. It closes no DataSource.
 *
 * <pre>{@code
 * Once once = Once.over(Nodes.of(first, second));
 * }</pre>
 */
public final class Nodes implements Route {
    static final int TENANTS_MAX = 10_000;
    private static final int SLOTS = 64;
    /** Of a node. */
    private static final long ASK_WITHIN_NS = TimeUnit.SECONDS.toNanos(2);
    /** At least, between two inquiries. */
    private static final long PAUSE_NS = TimeUnit.MILLISECONDS.toNanos(100);
    /** After an inquiry that has not found a slot. */
    private static final long AGAIN_NS = TimeUnit.SECONDS.toNanos(1);
    private static final Pattern URL = Pattern.compile("jdbc:postgresql://(?:[^/?@]*@)?([^/?@]*/[^/?@]*).*");

    private final Node[] nodes;
    /** Their slots, the last used last. */
    private final Map<String, Integer> tenants = new LinkedHashMap<>(16, 0.75f, true) {
        private static final long serialVersionUID = 1L;

        @Override
        protected boolean removeEldestEntry(Map.Entry<String, Integer> eldest) {
            return size() > TENANTS_MAX;
        }
    };
    private final Map<String, CompletableFuture<Integer>> asked = new HashMap<>();
    private CompletableFuture<Void> running;
    /** Begins after the one that runs. */
    private CompletableFuture<Void> next;
    private boolean ended;
    private long beganNs = System.nanoTime() - PAUSE_NS;
    private long endedNs;

    private Nodes(Node[] nodes) {
        this.nodes = nodes;
    }

    /**
     * Over the nodes.
     *
     * @param nodes a DataSource of each; if there are several, each must be divided
     * @return for {@link Once#over(Route)}
     */
    public static Nodes of(DataSource... nodes) {
        if (nodes.length == 0) {
            throw new IllegalArgumentException("there is no node");
        }
        return new Nodes(Arrays.stream(nodes).map(Node::new).toArray(Node[]::new));
    }

    /** What is asked may hang until the driver gives up: made with the first inquiry. */
    private static final class Threads {
        static final ExecutorService ALL = Executors.newCachedThreadPool(work -> {
            Thread thread = new Thread(work, "pgonce-nodes");
            thread.setDaemon(true);
            return thread;
        });
    }

    /** What it has told is read and written under the monitor of its Nodes. */
    private static final class Node {
        final DataSource source;
        /** Null: it has told nothing yet. */
        Told told;
        /** Of the last inquiry, which leaves what was told before. */
        Throwable failure;
        CompletableFuture<Told> asking;

        Node(DataSource source) {
            this.source = java.util.Objects.requireNonNull(source, "a node");
        }
    }

    private record Told(boolean divided, long[] epochs, boolean[] open) {
    }

    @Override
    public DataSource node(String tenant, SlotClosedException closed) {
        boolean first;
        boolean recent;
        synchronized (this) {
            first = !ended;
            recent = ended && System.nanoTime() - endedNs < AGAIN_NS;
        }
        if (!first) {
            try {
                DataSource known = known(tenant, closed, false);
                if (known != null) {
                    return known;
                }
            } catch (UnavailableException | IllegalStateException unknown) {
                if (closed == null && recent) {
                    throw unknown;
                }
            }
        }
        await(inquiry(!first));
        return known(tenant, closed, true);
    }

    /** By what was told. fresh: all nodes were asked for this call. Null: what is known is no newer than the refusal. */
    private DataSource known(String tenant, SlotClosedException closed, boolean fresh) {
        synchronized (this) {
            for (Node node : nodes) {
                if (node.told == null || node.told.divided) {
                    continue;
                } else if (nodes.length > 1) {
                    throw new IllegalStateException(name(node) + " is not divided, so it cannot share the tenants with others: see once.divide, and pgonce init --join");
                } else if (closed == null || fresh) {
                    return node.source; // a single node serves every tenant
                }
            }
        }
        int slot = slotOf(tenant, closed);
        synchronized (this) {
            return serving(slot, closed, fresh);
        }
    }

    /**
     * The node with the slot's highest epoch; of two, the one that has it open. If it is closed there, it may be moving, or a node that has it open may be an outdated
     * copy: then that node is asked, and refuses.
     */
    private DataSource serving(int slot, SlotClosedException closed, boolean fresh) {
        Node best = null;
        boolean open = false;
        List<Node> unheard = new ArrayList<>();
        for (Node node : nodes) {
            if (node.failure != null) {
                unheard.add(node);
            }
            if (node.told == null || fresh && node.failure != null) {
                continue;
            }
            boolean here = node.told.open[slot];
            if (best == null || node.told.epochs[slot] > best.told.epochs[slot] || (here && !open && node.told.epochs[slot] == best.told.epochs[slot])) {
                best = node;
                open = here;
            }
        }
        if (closed != null && !fresh && !(open && closed.slot() == slot && best.told.epochs[slot] > closed.epoch())) {
            return null;
        } else if (open || (best != null && unheard.isEmpty())) {
            return best.source;
        }
        throw unknown("slot " + slot, unheard);
    }

    private UnavailableException unknown(String what, List<Node> unheard) {
        String names = unheard.stream().map(this::name).collect(Collectors.joining(" and "));
        Throwable cause = unheard.isEmpty() ? null : unheard.get(0).failure;
        return (UnavailableException) Reason.UNAVAILABLE.exception("it is unknown which node serves " + what + ": " + names + " did not answer; nothing was done",
            cause, null, null);
    }

    private String name(Node node) {
        String where = where(node.source);
        return "node " + (Arrays.asList(nodes).indexOf(node) + 1) + (where == null ? "" : " (" + where + ")");
    }

    /** Host and database of the pools that tell their URL, and nothing else of it: it may hold a password. */
    static String where(DataSource source) {
        for (String getter : List.of("getJdbcUrl", "getUrl", "getURL")) {
            try {
                Matcher url = URL.matcher(String.valueOf(source.getClass().getMethod(getter).invoke(source)));
                if (url.matches()) {
                    return url.group(1);
                }
            } catch (ReflectiveOperationException | RuntimeException untold) {
                continue;
            }
        }
        return null;
    }

    /** Whose end is that every node has told its slots, or failed to. news: one that runs already may have heard what was true before. */
    private synchronized CompletableFuture<Void> inquiry(boolean news) {
        if (running != null && !news) {
            return running;
        }
        if (next == null) {
            CompletableFuture<Void> made = new CompletableFuture<>();
            CompletableFuture<Void> before = running == null ? CompletableFuture.completedFuture(null) : running;
            next = made;
            long pauseNs = Math.max(0, beganNs + PAUSE_NS - System.nanoTime());
            before.whenCompleteAsync((done, failure) -> ask(made), CompletableFuture.delayedExecutor(pauseNs, TimeUnit.NANOSECONDS, Threads.ALL));
        }
        return next;
    }

    private void ask(CompletableFuture<Void> made) {
        List<CompletableFuture<Told>> each = new ArrayList<>();
        long[] endsNs = new long[nodes.length];
        synchronized (this) {
            next = null;
            running = made;
            beganNs = System.nanoTime();
            for (int i = 0; i < nodes.length; i++) {
                Node node = nodes[i];
                // One that still hangs in the inquiry before is not waited for again, and has no second thread.
                endsNs[i] = beganNs;
                if (node.asking == null || node.asking.isDone()) {
                    endsNs[i] += ASK_WITHIN_NS;
                    node.asking = CompletableFuture.supplyAsync(() -> slots(node.source), Threads.ALL);
                }
                each.add(node.asking);
            }
        }
        for (int i = 0; i < nodes.length; i++) {
            Told told = null;
            Throwable failure = null;
            try {
                told = each.get(i).get(Math.max(0, endsNs[i] - System.nanoTime()), TimeUnit.NANOSECONDS);
            } catch (ExecutionException failed) {
                failure = failed.getCause() instanceof Failed wrapped ? wrapped.getCause() : failed.getCause();
            } catch (TimeoutException late) {
                failure = new SQLTimeoutException("no answer within " + TimeUnit.NANOSECONDS.toMillis(ASK_WITHIN_NS) + " ms");
            } catch (InterruptedException nobodys) {
                failure = nobodys;
            }
            synchronized (this) {
                nodes[i].failure = failure;
                nodes[i].told = told == null ? nodes[i].told : told;
            }
        }
        synchronized (this) {
            running = null;
            ended = true;
            endedNs = System.nanoTime();
        }
        made.complete(null);
    }

    /** Carries an SQLException out of a thread. */
    private static final class Failed extends RuntimeException {
        private static final long serialVersionUID = 1L;

        Failed(SQLException cause) {
            super(cause);
        }
    }

    private interface Reading<T> {
        T of(ResultSet row) throws SQLException;
    }

    private static <T> T read(DataSource source, String sql, String parameter, Reading<T> reading) {
        try (Connection connection = source.getConnection()) {
            T result;
            try (PreparedStatement statement = connection.prepareStatement(sql)) {
                if (parameter != null) {
                    statement.setString(1, parameter);
                }
                result = reading.of(statement.executeQuery());
            }
            if (!connection.getAutoCommit()) {
                connection.rollback();
            }
            return result;
        } catch (SQLException failure) {
            throw new Failed(failure);
        }
    }

    private static Told slots(DataSource source) {
        return read(source, "SELECT * FROM once.slots()", null, row -> {
            Told told = new Told(row.next(), new long[SLOTS], new boolean[SLOTS]);
            for (boolean more = told.divided; more; more = row.next()) {
                int slot = checked(row.getInt("slot"));
                told.epochs[slot] = row.getLong("epoch");
                told.open[slot] = row.getBoolean("open");
            }
            return told;
        });
    }

    private static int checked(int slot) throws SQLException {
        if (slot < 0 || slot >= SLOTS) {
            throw new SQLException("there is no slot " + slot);
        }
        return slot;
    }

    /** Never computed here: an installation may have replaced once.slot_of. */
    private int slotOf(String tenant, SlotClosedException closed) {
        CompletableFuture<Integer> answer;
        synchronized (this) {
            Integer known = tenants.get(tenant);
            if (known == null && closed != null && closed.slot() >= 0 && closed.slot() < SLOTS) {
                known = closed.slot();
                tenants.put(tenant, known);
            }
            if (known != null) {
                return known;
            }
            answer = asked.computeIfAbsent(tenant, name -> CompletableFuture.supplyAsync(() -> askSlot(name), Threads.ALL));
        }
        return await(answer);
    }

    /** Of the first node that answers. One that the last inquiry has not heard is not asked. */
    private int askSlot(String tenant) {
        List<Node> heard = new ArrayList<>();
        List<Node> unheard = new ArrayList<>();
        synchronized (this) {
            for (Node node : nodes) {
                (node.failure == null ? heard : unheard).add(node);
            }
        }
        Integer slot = null;
        for (Node node : heard) {
            try {
                slot = read(node.source, "SELECT once.slot_of(?::text)", tenant, row -> {
                    row.next();
                    return checked(row.getInt(1));
                });
                break;
            } catch (RuntimeException failure) {
                synchronized (this) {
                    node.failure = failure instanceof Failed ? failure.getCause() : failure;
                }
                unheard.add(node);
            }
        }
        synchronized (this) {
            asked.remove(tenant);
            if (slot == null) {
                throw unknown("the tenant", unheard);
            }
            tenants.put(tenant, slot);
            return slot;
        }
    }

    /** Of what others wait for as well. It ends in time: a slot is asked of nodes that have just answered. */
    private static <T> T await(CompletableFuture<T> answer) {
        try {
            return answer.get(3 * ASK_WITHIN_NS, TimeUnit.NANOSECONDS);
        } catch (InterruptedException stop) {
            Thread.currentThread().interrupt();
            throw Reason.INTERRUPTED.exception(stop);
        } catch (ExecutionException failure) {
            if (failure.getCause() instanceof RuntimeException known) {
                throw known;
            }
            throw new IllegalStateException(failure.getCause());
        } catch (TimeoutException late) {
            throw Reason.UNAVAILABLE.exception("no node said in time where the tenant is served; nothing was done", late, null, null);
        }
    }
}

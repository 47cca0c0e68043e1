// SPDX-License-Identifier: PostgreSQL
package io.pgonce.testing;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;

/** Stands between a client and the server, and counts round trips: what a client sends without waiting for an answer is one. */
public final class Trips implements AutoCloseable {
    private final AtomicInteger made = new AtomicInteger();
    private final ServerSocket listener;

    public Trips(Server server) throws IOException {
        listener = new ServerSocket(0, 1, InetAddress.getLoopbackAddress());
        Thread relay = new Thread(() -> {
            while (true) {
                try {
                    Socket client = listener.accept();
                    Socket target = new Socket("127.0.0.1", server.said.get("port").asInt());
                    AtomicBoolean answered = new AtomicBoolean(true);
                    new Thread(() -> pass(target, client, () -> answered.set(true))).start();
                    new Thread(() -> pass(client, target, () -> made.addAndGet(answered.getAndSet(false) ? 1 : 0))).start();
                } catch (IOException end) {
                    return; // the test has ended
                }
            }
        });
        relay.setDaemon(true);
        relay.start();
    }

    public int port() {
        return listener.getLocalPort();
    }

    public int made() {
        return made.get();
    }

    private static void pass(Socket from, Socket to, Runnable noticed) {
        byte[] bytes = new byte[1 << 16];
        try {
            for (int size = from.getInputStream().read(bytes); size >= 0; size = from.getInputStream().read(bytes)) {
                noticed.run();
                to.getOutputStream().write(bytes, 0, size);
            }
            to.close();
        } catch (IOException end) {
            // the other side has gone
        }
    }

    @Override
    public void close() throws IOException {
        listener.close();
    }
}

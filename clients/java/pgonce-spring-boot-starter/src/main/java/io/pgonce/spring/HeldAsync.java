// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import jakarta.servlet.AsyncContext;
import jakarta.servlet.AsyncEvent;
import jakarta.servlet.AsyncListener;
import jakarta.servlet.ServletContext;
import jakarta.servlet.ServletException;
import jakarta.servlet.ServletRequest;
import jakarta.servlet.ServletResponse;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;

/** A stream of events that begins when the effect is committed: what is done to it before is noted, and done then. */
final class HeldAsync implements AsyncContext {
    /** The calls to repeat on the container's own context. */
    private interface Step {
        void to(AsyncContext real);
    }

    private final ServletRequest request;
    private final ServletResponse response;
    private final List<Step> steps = new ArrayList<>();
    private final List<AsyncListener> listeners = new ArrayList<>();
    private AsyncContext real;
    private boolean failed;
    private long timeout = 30_000;

    HeldAsync(ServletRequest request, ServletResponse response) {
        this.request = request;
        this.response = response;
    }

    synchronized void begin(AsyncContext started) {
        real = started;
        steps.forEach(each -> each.to(real));
        steps.clear();
    }

    /** It does not begin: who listens is told. */
    void fail(Throwable failure) {
        List<AsyncListener> told;
        synchronized (this) {
            failed = true;
            steps.clear();
            told = List.copyOf(listeners);
        }
        for (AsyncListener each : told) {
            try {
                each.onError(new AsyncEvent(this, request, response, failure));
                each.onComplete(new AsyncEvent(this, request, response));
            } catch (IOException unheard) {
                failure.addSuppressed(unheard);
            }
        }
    }

    private synchronized void step(Step step) {
        if (real != null) {
            step.to(real);
        } else if (!failed) {
            steps.add(step);
        }
    }

    @Override
    public ServletRequest getRequest() {
        return request;
    }

    @Override
    public ServletResponse getResponse() {
        return response;
    }

    @Override
    public boolean hasOriginalRequestAndResponse() {
        return false;
    }

    @Override
    public void dispatch() {
        step(AsyncContext::dispatch);
    }

    @Override
    public void dispatch(String path) {
        step(each -> each.dispatch(path));
    }

    @Override
    public void dispatch(ServletContext context, String path) {
        step(each -> each.dispatch(context, path));
    }

    @Override
    public void complete() {
        step(AsyncContext::complete);
    }

    @Override
    public void start(Runnable work) {
        step(each -> each.start(work));
    }

    @Override
    public synchronized void addListener(AsyncListener listener) {
        listeners.add(listener);
        step(each -> each.addListener(listener, request, response));
    }

    @Override
    public void addListener(AsyncListener listener, ServletRequest with, ServletResponse and) {
        addListener(listener);
    }

    @Override
    public <T extends AsyncListener> T createListener(Class<T> type) throws ServletException {
        try {
            return type.getDeclaredConstructor().newInstance();
        } catch (ReflectiveOperationException failure) {
            throw new ServletException(failure);
        }
    }

    @Override
    public synchronized void setTimeout(long ms) {
        timeout = ms;
        step(each -> each.setTimeout(ms));
    }

    @Override
    public synchronized long getTimeout() {
        return timeout;
    }
}

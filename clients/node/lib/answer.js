// SPDX-License-Identifier: PostgreSQL
// Answers as node:http sends them: pairs of name and value, the lines of one name together.
'use strict';

// What describes a body; of an outer layer's it is another body's.
const OF_BODY = /^(?:content-(?:type|length|encoding|range|disposition|location|md5|digest)|etag|last-modified|accept-ranges|transfer-encoding|trailer)$/i;
const FRAMING = /^(?:content-length|transfer-encoding|connection|keep-alive)$/i;
const CORS = /^access-control-/i;

/** Pairs, those of one name together. */
function byName(pairs) {
  const named = new Map();
  for (const [name, value] of pairs) {
    const of = named.get(name.toLowerCase()) ?? [name, []];
    of[1].push(value);
    named.set(name.toLowerCase(), of);
  }
  return [...named.values()].map(([name, values]) => [name, values.length === 1 ? values[0] : values]);
}

const pairsOf = (headers) => headers.flatMap(([name, value]) => (Array.isArray(value) ? value.map((each) => [name, String(each)]) : [[name, String(value)]]));

/** What is set by now, as [name, value]. */
const headersOf = (res) => (res.getRawHeaderNames?.() ?? res.getHeaderNames()).map((name) => [name, res.getHeader(name)]);

/** The headers of an answer of pgonce, with those that outer layers have set for every answer: [name, value]. CORS headers are theirs, since they depend on the current client. */
function among(outer, {headers}) {
  const kept = outer.filter(([name]) => !OF_BODY.test(name));
  const theirs = new Set(kept.map(([name]) => name.toLowerCase()).filter((name) => CORS.test(name)));
  const own = byName(headers.filter(([name]) => !FRAMING.test(name) && !theirs.has(name.toLowerCase())));
  const names = new Set(own.map(([name]) => name.toLowerCase()));
  return [...kept.filter(([name]) => !names.has(name.toLowerCase())), ...own];
}

/** The response gets these headers and no others. */
function reset(res, headers) {
  for (const name of res.getHeaderNames()) res.removeHeader(name);
  for (const [name, value] of headers) res.setHeader(name, value);
  if (res.statusMessage) res.statusMessage = undefined;
}

/** An answer of pgonce, which ends the response. outer: the headers of outer layers. */
function send(res, answer, outer = headersOf(res)) {
  const {status, body} = answer;
  reset(res, among(outer, answer));
  res.statusCode = status;
  const bodiless = status === 204 || status === 304 || res.req?.method === 'HEAD';
  if (!bodiless) res.setHeader('Content-Length', body.length);
  res.end(bodiless ? undefined : body);
}

module.exports = {among, byName, headersOf, pairsOf, reset, send};

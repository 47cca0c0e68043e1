-- SPDX-License-Identifier: PostgreSQL
-- For wrk: POSTs with a key. Arguments: "unique" and a seed (each request a key of its own, like UUIDv4), or "replay", a
-- seed and a count (the same keys again and again). Prints one line of JSON at the end.
local threads = 0

function setup(thread)
   threads = threads + 1
   thread:set("id", threads)
end

local head = { ["Content-Type"] = "application/json", ["Idempotency-Key"] = "" }
local body = '{"order": "A-17", "amount": 1999, "currency": "EUR", "customer": "ada"}'
local kind, seed, count, number

function init(arguments)
   kind, seed, count, number = arguments[1], arguments[2], tonumber(arguments[3] or "0"), 0
   -- A thread's own sequence: the seed, the thread.
   local start = id
   for i = 1, #seed do
      start = (start * 31 + seed:byte(i)) % 2147483647
   end
   math.randomseed(start)
end

function request()
   number = number + 1
   if kind == "unique" then
      local random = math.random
      head["Idempotency-Key"] = string.format('"%04x%04x-%04x-4%03x-8%03x-%04x%04x%04x"', random(0, 65535), random(0, 65535),
         random(0, 65535), random(0, 4095), random(0, 4095), random(0, 65535), random(0, 65535), number % 65536)
   else
      head["Idempotency-Key"] = string.format('"replay-%s-%d"', seed, (number + id * 7919) % count)
   end
   return wrk.format("POST", nil, head, body) -- nil: the path of the URL
end

function done(summary, latency)
   io.write(string.format(
      '{"requests": %d, "us": %d, "p50_us": %d, "p99_us": %d, "errors": %d, "refused": %d}\n',
      summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
      summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout, summary.errors.status))
end

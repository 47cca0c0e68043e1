// SPDX-License-Identifier: PostgreSQL
import type {IncomingMessage, ServerResponse} from 'node:http';
import type {Http2ServerRequest, Http2ServerResponse} from 'node:http2';
import type {Pool, PoolClient} from 'pg';

/** An id as an application has it. An integer is written out in decimals; other numbers, and those above 2^53, are a TypeError. */
export type Id = string | number | bigint;

/** What tells a retry from another operation with the same key: bytes of a string or Buffer, an HTTP request, or any value of JSON (in canonical form). */
export type Request = string | Uint8Array | {http: HttpRequest} | unknown;

export interface HttpRequest {
  method: string;
  /** The host in lower case, then path and query as they were sent: 'shop.test/pay?dry=0'. */
  target: string;
  contentType?: string;
  body?: string | Uint8Array;
  canonicalJson?: boolean;
}

/** What an effect returns. body: a string, bytes, or any value of JSON. */
export interface Answer {
  status?: number;
  headers?: Record<string, string>;
  body?: unknown;
  resultType?: string;
  resultId?: Id;
}

/** What is stored. */
export interface StoredAnswer {
  status: number | null;
  headers: Record<string, unknown> | null;
  body: Buffer | null;
  resultType: string | null;
  resultId: string | null;
  errorCode: string | null;
  errorMessage: string | null;
}

export interface Result extends StoredAnswer {
  /** true: the effect happened before; this is its answer. */
  replayed: boolean;
}

export interface EmitOptions {
  aggregateType?: string;
  aggregateId?: Id;
  /** The topic, unless set. An intent has one event of each type: give several of one topic a type each. */
  eventType?: string;
  /** scope and key: the intent that causes it; that in whose attempt it is emitted, unless set. null: none. */
  scope?: string | null;
  key?: Id | null;
  headers?: Record<string, string>;
  tenant?: Id;
  traceparent?: string;
  /** It is published then and not sooner, and has its place in the order of its aggregate then. At once, unless set. */
  notBefore?: Date;
}

/** An event of bytes cannot be delayed. */
export type EmitBytesOptions = Omit<EmitOptions, 'notBefore'>;

/** What an effect gets besides its transaction. */
export interface Within {
  readonly scope: string;
  readonly key: string;
  readonly tenant: string;
  readonly traceparent?: string;
  /** An event of this intent, in its transaction. Resolves to the event's id. */
  emit(topic: string, payload: unknown, options?: EmitOptions): Promise<string>;
  /** emit, for bytes with a content type of the application's. */
  emitBytes(topic: string, payload: Uint8Array, contentType: string, options?: EmitBytesOptions): Promise<string>;
  lock(resource: Id, options?: {waitMs?: number}): Promise<boolean>;
}

export interface CallOptions {
  tenant?: Id;
  /** W3C Trace Context; the active span's where OpenTelemetry's API is installed. */
  traceparent?: string;
  /** For how long it is tried again what serialization or a lost connection has ended. 30000 unless set. */
  deadlineMs?: number;
  /** For how long to wait for another attempt that runs. 0 unless set. */
  waitMs?: number;
  /** Looked at between attempts, never between an effect and its outcome. */
  signal?: AbortSignal;
}

export interface RunOptions extends CallOptions {
  isolation?: 'read committed' | 'repeatable read' | 'serializable';
}

export interface ClaimOptions extends CallOptions {
  /** The scope's unless set; renewed in the background. */
  leaseMs?: number;
  retentionMs?: number;
  /** Of an attempt that fell silent, and may have had its effect: true, where a repetition is harmless, takes over; false leaves it in doubt. The scope's on_stale unless set. */
  takeover?: boolean;
  /** Who works, for people. */
  owner?: string;
}

export interface Claim {
  readonly replayed: false;
  readonly verdict: 'new_claim' | 'retryable_failure' | 'processing_stale';
  readonly fence: number;
  readonly traceparent: string | null;
  /** Aborted with a LeaseLost when the lease is lost. */
  readonly signal: AbortSignal;
  /** true: stored now; false: this very answer was stored already. */
  complete(answer?: Answer): Promise<boolean>;
  /** retryable true: certainly no effect; false: failed for good; null: the outcome is unknown. */
  fail(retryable: boolean | null, failure?: {code?: string; message?: string; answer?: Answer}): Promise<boolean>;
  release(): Promise<boolean>;
  renew(): Promise<boolean>;
}

export interface MiddlewareOptions<R = IncomingMessage> {
  /** The kind of operation, such as orders. */
  scope: string;
  /** Whose key it is, by what authentication has proved: never what a client can choose freely. false where there is but one caller. */
  tenant: ((request: R) => Id | undefined | Promise<Id | undefined>) | false;
  /** 'lease': the handler runs under a claim, without a transaction and a connection: for effects elsewhere. 'transaction' unless set. */
  mode?: 'transaction' | 'lease';
  /** false: requests without a key pass unprotected. */
  required?: boolean;
  waitMs?: number;
  /** The longest that an attempt takes, from the wait for a connection on: then it is rolled back (in mode 'lease': in doubt). 30000 unless set. */
  handlerMs?: number;
  /** The largest answer that is kept, 1 MiB unless set; a larger one, and one that the scope does not allow, is sent and remembered as done. */
  responseMax?: number;
  /** The largest body of a request, 16 MiB unless set. */
  bodyMax?: number;
  /** POST and PATCH unless set. */
  methods?: string[];
  /** The headers that are replayed, names or prefixes that end in *, instead of the built-in list. */
  headers?: string[];
  /** false: the Host is no part of the request; for a service that has several names. */
  host?: boolean;
  canonicalJson?: boolean;
  strictKeys?: boolean;
  keyLength?: number;
  isolation?: RunOptions['isolation'];
  /** true: a gateway in front has the same scope, and its claim is finished here (docs/reference/gateway.md). Only where every request comes through it. */
  gateway?: boolean;
  /** What stands before a problem's name in its type: the start of a URI, checked at once. */
  problemBase?: string;
}

/** req.pgonce in a handler. An unprotected request has only tx, which is the pool then; with several nodes, no tx. */
export type Handling = {tx: PoolClient} & Within;

/** req.pgonce in mode 'lease'. */
export interface Leased {
  readonly scope: string;
  readonly key: string;
  readonly tenant: string;
  readonly traceparent: string | null;
  readonly fence: number;
  /** Aborted when the lease is lost. */
  readonly signal: AbortSignal;
}

/** A plugin: await app.register(once.fastify(...)). Without a scope it protects the routes that have one in config.pgonce. */
export type FastifyPlugin = (app: any, options: any, done: (error?: Error) => void) => void;

export type HttpRequestOf = IncomingMessage | Http2ServerRequest;
export type HttpResponseOf = ServerResponse | Http2ServerResponse;

/** Gives the pool of the node that serves a tenant. refused: that node has just refused the tenant, and the call is made once more. */
export type Router = (tenant: string, refused?: SlotClosed) => Pool | Promise<Pool>;

/** A router over the nodes that share the tenants (docs/how/scale.md): it asks them which of them serves a tenant. */
export function nodes(pools: Pool[]): Router;

export class Once {
  /** pool: of pg; or a function of the tenant that gives one, such as nodes([...]): it is called for each transaction. logger: its error(line) is told why a request got a 5xx of this client's, console.error unless set; its debug(line) that one was refused. */
  constructor(pool: Pool | Router, options?: {tenant?: Id; logger?: {error(line: string): void; debug?(line: string): void}});
  /** BEGIN and start, the effect in its transaction, finish and COMMIT. Replays what is stored. */
  run(scope: string, key: Id, request: Request, effect: (tx: PoolClient, within: Within) => Promise<Answer | void> | Answer | void, options?: RunOptions): Promise<Result>;
  /** A lease on an intent whose effect is elsewhere. */
  claim(scope: string, key: Id, request: Request, options?: ClaimOptions): Promise<Claim | (Result & {replayed: true})>;
  /** fn as a function that runs at most once for each key; behind its own arguments it gets what it works under. */
  effect<A extends unknown[], T>(
    options: Omit<ClaimOptions, 'tenant'> & {
      scope: string | ((...args: A) => string); key: Id | ((...args: A) => Id); tenant?: Id | ((...args: A) => Id); request?: Request | ((...args: A) => Request);
    },
    fn: (...args: [...A, {signal: AbortSignal; fence: number; traceparent: string | null; scope: string; key: string; tenant: string}]) => Promise<T> | T,
  ): (...args: A) => Promise<T>;
  /** Within an attempt (of a middleware, run, consume or effect) the event is that intent's. */
  emit(tx: PoolClient, topic: string, payload: unknown, options?: EmitOptions): Promise<string>;
  /** emit, for bytes with a content type of the application's: 1 to 255 characters of visible ASCII, with spaces within. */
  emitBytes(tx: PoolClient, topic: string, payload: Uint8Array, contentType: string, options?: EmitBytesOptions): Promise<string>;
  /** In the consumer's own transaction. */
  receive(tx: PoolClient, consumer: string, message: Id, payload: Request, options?: {tenant?: Id; traceparent?: string}): Promise<'process' | 'duplicate'>;
  /** receive, the effect and COMMIT. */
  consume(consumer: string, message: Id, payload: Request, effect: (tx: PoolClient) => unknown, options?: RunOptions): Promise<'process' | 'duplicate'>;
  lock(tx: PoolClient, resource: Id, options?: {waitMs?: number}): Promise<boolean>;
  express(options: MiddlewareOptions<any>): (req: any, res: any, next: (error?: unknown) => void) => void;
  fastify(options: Omit<MiddlewareOptions<any>, 'scope'> & {scope?: string}): FastifyPlugin;
  /** For http.createServer and http2.createServer. */
  http<Req extends HttpRequestOf = IncomingMessage, Res extends HttpResponseOf = ServerResponse>(
    options: MiddlewareOptions<Req> & {mode: 'lease'}, handler: (req: Req & {pgonce: Leased; rawBody?: Buffer}, res: Res) => unknown,
  ): (req: Req, res: Res) => Promise<void>;
  http<Req extends HttpRequestOf = IncomingMessage, Res extends HttpResponseOf = ServerResponse>(
    options: MiddlewareOptions<Req> & {mode?: 'transaction'}, handler: (req: Req & {pgonce: Handling; rawBody?: Buffer}, res: Res) => unknown,
  ): (req: Req, res: Res) => Promise<void>;
  /** What run, claim and effect throw, as the gateway would answer it; undefined: it is the application's own to answer. */
  answerOf(error: unknown, options?: {problemBase?: string}): HttpAnswer | undefined;
  /** The same for Express, behind the routes: app.use(once.problems()). */
  problems(options?: {problemBase?: string}): (error: any, req: any, res: any, next: (error?: unknown) => void) => void;
}

export interface HttpAnswer {
  status: number;
  headers: [string, string][];
  body: Buffer;
}

export class OnceError extends Error {
  /** A name of once.errors(), or connection, serialization, outcome_unknown, swallowed, lease_lost, not_in_transaction, transaction_control, not_divided. */
  readonly code: string;
  readonly sqlstate: string | null;
  /** What the gateway answers for it. */
  readonly status: number;
  /** May the same call be made again as it is? */
  readonly retryable: boolean;
  /** Of the intent's first attempt, where what that has left is why this one did not run. */
  readonly traceparent?: string;
}
export class Mismatch extends OnceError {}
export class Active extends OnceError {}
export class InDoubt extends OnceError {
  /** Of a claim: errorCode and errorMessage say why. If it is this call that does not know, cause is what the work threw. */
  readonly answer?: StoredAnswer;
}
export class Expired extends OnceError {}
/** This node does not serve the tenant now: several nodes share the tenants, and its slot is closed here. Nothing was done. */
export class SlotClosed extends OnceError {
  /** The tenant's slot, and its epoch at this node. */
  readonly slot?: number;
  readonly epoch?: number;
}
export class FinalFailure extends OnceError {
  readonly answer: StoredAnswer;
  /** An earlier attempt failed, and this is what it stored. */
  readonly replayed: boolean;
}
export class OutcomeUnknown extends OnceError {}
export class LeaseLost extends OnceError {}

/** Thrown by an effect: it failed for good, and every retry gets this answer. What the effect did is taken back. */
export class Failed extends Error {
  constructor(code: string, message: string, answer?: Answer);
  readonly code: string;
  readonly answer: Answer;
}
/** Thrown by the function of once.effect: certainly nothing was done, the next attempt may run. */
export class NotDone extends Error {}

/** The key of a request that no middleware has seen, for a claim. Throws the OnceError key_malformed. */
export function keyOf(req: any, options?: {strict?: boolean; lengthMax?: number}): string;
/** The key in the value of an Idempotency-Key header, or what is wrong with it. */
export function keyOfHeader(value: string, options?: {strict?: boolean; lengthMax?: number}): {key: string; fault?: undefined} | {key?: undefined; fault: string};
/** For express.json({verify: rawBody}), where a parser comes before the middleware. */
export function rawBody(req: any, res: any, body: Buffer): void;

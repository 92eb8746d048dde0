import type { Subscriber } from "../api/socket";
import type { ErrorBody, GenerationFrame, Point, StoredGeneration, Timings, Usage } from "../api/types";
import { Samples } from "../instrument/rate";

export type RunState =
  | "idle"
  | "queued"
  | "loading"
  | "prefill"
  | "streaming"
  | "complete"
  | "stopped"
  | "interrupted"
  | "failed"
  | "reconnecting";

export interface Piece {
  text: string;
  /** -1 where it is not known. */
  engineMs: number;
  /** Tokens written up to and with this piece. */
  tokens: number;
}

/** Compares two Redis stream ids ("ms-seq") by their numbers. */
export function laterEvent(a: string, b: string): boolean {
  const [aMs = 0, aSeq = 0] = a.split("-").map(Number);
  const [bMs = 0, bSeq = 0] = b.split("-").map(Number);
  return aMs > bMs || (aMs === bMs && aSeq > bSeq);
}

/** The place in `text` that many code points after `at`. */
function after(text: string, at: number, characters: number): number {
  if (characters >= text.length - at) return text.length;
  let end = at;
  for (let n = 0; n < characters && end < text.length; n++) end += text.charCodeAt(end) >> 10 === 0x36 ? 2 : 1;
  return end;
}

/**
 * One generation as this page knows it. The stream enters here and nowhere else; views read it or take `pieces` from an index of
 * their own, so any number of views see the same text in the same order.
 */
export class Generation implements Subscriber {
  state: RunState = "queued";
  /** The state to return to once the connection is back. */
  private before: RunState = "queued";
  lastEventId = "0";
  readonly samples = new Samples();
  readonly pieces: Piece[] = [];
  position = 0;
  loadFraction = 0;
  loadDetail = "";
  promptTokens: number | null = null;
  prefillDone = 0;
  prefillTotal = 0;
  queueMs: number | null = null;
  usage: Usage | null = null;
  timings: Timings | null = null;
  finishReason: string | null = null;
  error: ErrorBody | null = null;
  lostAt = 0;
  /** Page clock at the moment this page first knew of the run: only for the counters that tick before the engine answers. */
  readonly bornAt = performance.now();
  startedAt = 0;
  endedAt = 0;
  private readonly listeners = new Set<() => void>();

  constructor(
    /** "" until the server has accepted the request. */
    public id: string,
    readonly model: string,
    readonly maxTokens: number | null,
  ) {}

  static fromStored(stored: StoredGeneration): Generation {
    const run = new Generation(stored.id, stored.model, stored.params?.max_tokens ?? null);
    run.usage = stored.usage;
    run.timings = stored.timings;
    run.error = stored.error;
    run.queueMs = stored.timings?.queue_ms ?? null;
    if (stored.state === "queued" || stored.state === "running") return run; // everything comes again from the stream
    run.state = stored.state === "done" ? "complete" : stored.state;
    run.finishReason = stored.finish_reason || null;
    if (stored.last_event_id) run.lastEventId = stored.last_event_id;
    run.take(stored.text, stored.points);
    return run;
  }

  get ended(): boolean {
    return this.state === "complete" || this.state === "stopped" || this.state === "interrupted" || this.state === "failed";
  }

  get text(): string {
    return this.pieces.map((piece) => piece.text).join("");
  }

  /** Tokens written so far by the engine's count. */
  get tokens(): number {
    return this.usage?.completion_tokens ?? this.samples.total;
  }

  get ttftMs(): number | null {
    return this.timings?.ttft_ms ?? this.samples.firstMs;
  }

  get totalMs(): number | null {
    return this.timings?.total_ms ?? (this.samples.count > 0 ? this.samples.lastMs : null);
  }

  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  private changed(): void {
    for (const listener of [...this.listeners]) listener();
  }

  connectionLost(): void {
    if (this.ended || this.state === "reconnecting") return;
    this.before = this.state;
    this.state = "reconnecting";
    this.lostAt = performance.now();
    this.changed();
  }

  /** Adds a text with the points of its batches; text that they do not cover has no known time. */
  private take(text: string, points: Point[]): void {
    let at = 0;
    for (const [tokens, ms, characters] of points) {
      this.samples.add(tokens, ms);
      const end = after(text, at, characters);
      if (end > at) this.pieces.push({ text: text.slice(at, end), engineMs: ms, tokens: this.samples.total });
      at = end;
    }
    if (at < text.length) this.pieces.push({ text: text.slice(at), engineMs: -1, tokens: this.samples.total });
  }

  /** Applies one frame; a frame seen before is ignored, so replays after a resume repeat nothing. */
  apply(frame: GenerationFrame): void {
    if (this.ended) return;
    if ("event_id" in frame && frame.event_id) {
      if (!laterEvent(frame.event_id, this.lastEventId)) return;
      this.lastEventId = frame.event_id;
    }
    if (this.state === "reconnecting") this.state = this.before;
    switch (frame.type) {
      case "queued":
        if (this.samples.count === 0) this.state = "queued";
        this.position = frame.position;
        break;
      case "loading":
        this.state = "loading";
        this.loadFraction = frame.fraction;
        this.loadDetail = frame.detail;
        break;
      case "started":
        this.state = "prefill";
        this.startedAt = performance.now();
        this.promptTokens = frame.prompt_tokens;
        this.prefillTotal = frame.prompt_tokens;
        this.queueMs = frame.queue_ms;
        break;
      case "prefill":
        this.state = "prefill";
        this.prefillDone = frame.done;
        this.prefillTotal = frame.total;
        break;
      case "delta":
        this.state = "streaming";
        this.take(frame.text, frame.points ?? [[frame.tokens, frame.elapsed_ms, Infinity]]);
        break;
      case "done":
        this.usage = frame.usage;
        this.timings = frame.timings;
        this.queueMs = frame.timings.queue_ms ?? this.queueMs;
        this.finishReason = frame.finish_reason;
        this.state = frame.finish_reason === "cancelled" ? "stopped" : frame.finish_reason === "interrupted" ? "interrupted" : "complete";
        break;
      case "error":
        this.error = { code: frame.code, message: frame.message, details: frame.details };
        this.state = frame.code === "interrupted" || frame.code === "engine_stopped" ? "interrupted" : "failed";
        break;
    }
    if (this.ended) this.endedAt = performance.now();
    this.changed();
  }
}

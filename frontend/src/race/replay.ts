import { Generation } from "../store/generation";

/**
 * A paced replay: the text of the other lane's run, given out at a fixed rate. It starts with the other run's first token and never runs
 * ahead of it. Its numbers are made by its own clock, and its badge says so.
 */
export class Replay {
  readonly run: Generation;
  private given = 0;
  private chars = 0;
  private startedAt = 0;
  private stopped = false;

  constructor(
    private readonly source: Generation,
    readonly rate: number,
  ) {
    this.run = new Generation(`replay-${rate}`, source.model, source.maxTokens);
  }

  stop(): void {
    this.stopped = true;
    this.tick();
  }

  /** Gives out what is due. Called once a frame. */
  tick(now = performance.now()): void {
    const { source, run } = this;
    const first = source.samples.firstMs;
    if (run.ended) return;
    if (first === null) {
      if (source.ended) this.end("interrupted");
      return;
    }
    if (this.startedAt === 0) {
      this.startedAt = now - first;
      run.apply({ type: "started", generation_id: run.id, event_id: "1-0", prompt_tokens: source.promptTokens ?? 0, queue_ms: source.queueMs ?? 0 });
    }
    const elapsed = now - this.startedAt;
    const due = Math.min(source.samples.total, 1 + Math.floor(((elapsed - first) * this.rate) / 1000));
    if (due > this.given) {
      const end = this.charsAt(due);
      const text = source.text.slice(this.chars, end);
      run.apply({ type: "delta", generation_id: run.id, event_id: `2-${due}`, text, tokens: due - this.given, elapsed_ms: first + ((due - 1) * 1000) / this.rate });
      this.given = due;
      this.chars = end;
    }
    if (this.stopped) this.end("cancelled");
    else if (source.ended && this.given >= source.samples.total) this.end("stop");
  }

  /** Characters that `tokens` tokens of the source make, evenly within one of its pieces. */
  private charsAt(tokens: number): number {
    let chars = 0;
    let before = 0;
    for (const piece of this.source.pieces) {
      if (piece.tokens > tokens) return chars + Math.floor((piece.text.length * (tokens - before)) / (piece.tokens - before));
      chars += piece.text.length;
      before = piece.tokens;
    }
    return chars;
  }

  private end(reason: "stop" | "cancelled" | "interrupted"): void {
    const { run, source } = this;
    const first = source.samples.firstMs ?? 0;
    run.apply({
      type: "done",
      generation_id: run.id,
      event_id: "3-0",
      finish_reason: reason,
      usage: { prompt_tokens: source.promptTokens ?? 0, completion_tokens: this.given },
      timings: { queue_ms: source.queueMs, ttft_ms: first, total_ms: run.samples.lastMs, decode_tokens_per_s: this.given > 1 ? this.rate : null },
    });
  }
}

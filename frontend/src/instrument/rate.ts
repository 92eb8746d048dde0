/** Cumulative token counts at engine times, and every rate that the instrument shows. Times in ms since the engine got the request. */
export class Samples {
  private readonly times: number[] = [];
  private readonly totals: number[] = [];

  get count(): number {
    return this.times.length;
  }
  get total(): number {
    return this.totals[this.totals.length - 1] ?? 0;
  }
  get lastMs(): number {
    return this.times[this.times.length - 1] ?? 0;
  }
  get firstMs(): number | null {
    return this.times[0] ?? null;
  }

  add(tokens: number, elapsedMs: number): void {
    if (tokens <= 0) return;
    const last = this.times.length - 1;
    if (last >= 0 && elapsedMs <= this.lastMs) {
      this.totals[last] = this.total + tokens; // two batches of one engine instant are one sample
      return;
    }
    this.times.push(elapsedMs);
    this.totals.push(this.total + tokens);
  }

  /** Tokens written by engine time `ms`, linear between samples, 0 before the first. */
  totalAt(ms: number): number {
    const { times, totals } = this;
    const n = times.length;
    if (n === 0 || ms < (times[0] as number)) return 0;
    if (ms >= (times[n - 1] as number)) return totals[n - 1] as number;
    let low = 0;
    let high = n - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if ((times[middle] as number) <= ms) low = middle;
      else high = middle;
    }
    const t0 = times[low] as number;
    const t1 = times[high] as number;
    const n0 = totals[low] as number;
    const n1 = totals[high] as number;
    return n0 + ((n1 - n0) * (ms - t0)) / (t1 - t0);
  }

  /** Mean tokens/s over (from, to], counted after the first sample, whose tokens belong to the first-token time. */
  rateBetween(fromMs: number, toMs: number): number | null {
    const first = this.firstMs;
    if (first === null) return null;
    const from = Math.max(fromMs, first);
    if (toMs <= from) return null;
    return ((this.totalAt(toMs) - this.totalAt(from)) * 1000) / (toMs - from);
  }

  /** The live figure: the last 250 ms, or the last second when that is under 100 tokens/s. Null until two batches have come. */
  live(): { rate: number; windowMs: number } | null {
    const now = this.lastMs;
    const short = this.rateBetween(now - 250, now);
    if (short === null) return null;
    if (short >= 100) return { rate: short, windowMs: 250 };
    const long = this.rateBetween(now - 1000, now);
    return long === null ? null : { rate: long, windowMs: 1000 };
  }

  /** Rates of whole buckets of `widthMs` that ended by now: [bucket index from the first token, rate]. */
  buckets(widthMs: number, fromIndex = 0): [number, number][] {
    const first = this.firstMs;
    if (first === null) return [];
    const whole = Math.floor((this.lastMs - first) / widthMs);
    const out: [number, number][] = [];
    for (let index = fromIndex; index < whole; index++) {
      const start = first + index * widthMs;
      out.push([index, ((this.totalAt(start + widthMs) - this.totalAt(start)) * 1000) / widthMs]);
    }
    return out;
  }
}

/** The x axis grows by doubling from 0.8 s, never per frame. */
export function timeScaleMs(elapsedMs: number): number {
  let scale = 800;
  while (scale < elapsedMs) scale *= 2;
  return scale;
}

const STEPS = [1.2, 1.5, 1.8, 3, 4.5, 6, 9, 12];

/** A round value at or above `value`, divisible into three even grid lines: 1,015 gives 1,200. */
export function roundTop(value: number): number {
  if (value <= 0) return 60;
  const magnitude = 10 ** Math.floor(Math.log10(value));
  for (const step of STEPS) if (step * magnitude >= value * 1.02) return step * magnitude;
  return 15 * magnitude;
}

/** Memory bandwidth use in per cent of the card's measured read bandwidth, or null where no bound was measured. */
export function bandwidthUse(rate: number, bytesPerToken: number, measuredBytesPerS: number | null): number | null {
  return measuredBytesPerS ? (100 * rate * bytesPerToken) / measuredBytesPerS : null;
}

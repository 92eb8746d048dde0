import { kindOf, uniqueName } from "../../chat/files";
import { Samples } from "../../instrument/rate";

/** [characters, tokens, elapsed ms] of what arrived at once. */
export type TraceEntry = [number, number, number];

export interface Answer {
  text: string;
  trace: TraceEntry[];
  state: string;
  finish_reason: string;
  usage: { prompt_tokens: number; completion_tokens: number } | null;
  timings: { queue_ms: number | null; ttft_ms: number | null; total_ms: number | null; decode_tokens_per_s: number | null } | null;
  params: Record<string, number>;
}

export interface Line {
  text: string;
  /** Where the line begins and ends in the answer, in characters. */
  start: number;
  end: number;
}

export interface Part {
  /** null: the whole answer as it was written. */
  name: string | null;
  language: string;
  lines: Line[];
}

/** The files of an answer, then the answer itself where it holds more than one file's text. */
export function partsOf(text: string): Part[] {
  const all = linesOf(text);
  const files: Part[] = [];
  const taken = new Set<string>();
  let prose = false;
  for (let i = 0; i < all.length; i++) {
    const open = /^ {0,3}(`{3,}|~{3,})(.*)$/.exec(all[i]!.text);
    if (!open) {
      prose ||= all[i]!.text.trim() !== "";
      continue;
    }
    const fence = open[1]!;
    const closing = new RegExp(`^ {0,3}\\${fence[0]}{${fence.length},}\\s*$`);
    const body: Line[] = [];
    while (++i < all.length && !closing.test(all[i]!.text)) body.push(all[i]!);
    const kind = kindOf(open[2]!.trim(), body[0]?.text ?? null);
    if (kind.name === null || body.length === 0) {
      prose = true;
      continue;
    }
    const name = uniqueName(kind.name, taken);
    taken.add(name);
    files.push({ name, language: kind.language, lines: body });
  }
  return files.length === 0 || prose ? [...files, { name: null, language: "text", lines: all }] : files;
}

function linesOf(text: string): Line[] {
  let at = 0;
  return text.split("\n").map((line) => {
    const start = at;
    at += line.length + 1;
    return { text: line, start, end: start + line.length };
  });
}

/** Characters, in UTF-16 units as in `text`, and tokens over the engine's time. */
export class Recording {
  readonly samples = new Samples();
  readonly totalMs: number;
  readonly tokens: number;
  private readonly times: number[] = [];
  private readonly reached: number[] = [];

  constructor(readonly answer: Answer) {
    const points = [...answer.text];
    const wide = points.length !== answer.text.length; // the server counts code points
    let at = 0;
    let units = 0;
    for (const [characters, tokens, ms] of answer.trace) {
      this.samples.add(tokens, ms);
      if (wide) for (const point of points.slice(at, at + characters)) units += point.length;
      else units += characters;
      at += characters;
      this.times.push(ms);
      this.reached.push(units);
    }
    this.totalMs = this.times[this.times.length - 1] ?? 0;
    this.tokens = this.samples.total;
  }

  get recorded(): boolean {
    return this.times.length > 0;
  }

  charactersAt(ms: number): number {
    if (ms >= this.totalMs) return this.answer.text.length;
    const index = lastAtMost(this.times, ms);
    return index < 0 ? 0 : this.reached[index]!;
  }

  /** When the character at `offset` had arrived. */
  timeOf(offset: number): number {
    let low = 0;
    let high = this.reached.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.reached[middle]! > offset) high = middle;
      else low = middle + 1;
    }
    return this.times[low] ?? 0;
  }

  /** The engine time at which `tokens` had been made: the inverse of `samples.totalAt`. */
  timeOfTokens(tokens: number): number {
    let low = 0;
    let high = this.totalMs;
    for (let step = 0; step < 40; step++) {
      const middle = (low + high) / 2;
      if (this.samples.totalAt(middle) < tokens) low = middle;
      else high = middle;
    }
    return high;
  }
}

/** Index of the last value at most `value`, -1 for none. */
function lastAtMost(sorted: number[], value: number): number {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle]! <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

import { languageFamily, tokenizeLine, type LineState } from "./tokens";

const SCOPE: Record<string, RegExp> = {
  python: /^\s*(?:async\s+)?(?:def|class)\s/,
  html: /^\s*<(?:head|body|header|main|section|article|nav|footer|form|table|ul|ol|div|script|style|svg)\b[^>]*>\s*$/i,
  css: /\{\s*$/,
  default: /^\s*(?:export\s+|default\s+|public\s+|private\s+|protected\s+|static\s+|async\s+|pub\s+)*(?:function\b|class\b|interface\b|struct\b|impl\b|trait\b|enum\b|fn\b|func\b|namespace\b|(?:const|let)\s+\w+\s*=\s*(?:async\s*)?(?:\([^)]*\)|\w+)\s*=>)|^\s*(?:[\w<>:*&~]+\s+)*(?!if\b|for\b|while\b|switch\b|catch\b|return\b)[\w~]+\s*\([^;]*\)\s*(?:const\s*)?\{\s*$/,
};

/** Columns a line takes, tabs as 4; close enough for scroll width. */
function columns(line: string): number {
  return line.includes("\t") ? line.replace(/\t/g, "    ").length : line.length;
}

/**
 * The text of one file while it is written: lines, the engine time at which each began, and, as far as they have been
 * worked out, each line's colour state and the line of its enclosing definition.
 */
export class CodeText {
  /** Every line; the last one is still open. */
  readonly lines: string[] = [""];
  /** Engine time in ms at which a line began; -1 where it is not known. */
  readonly times: number[] = [-1];
  /** Start state of each indexed line. */
  readonly states: LineState[] = [""];
  /** Line of the enclosing definition, -1 for none. */
  readonly enclosing: number[] = [];
  widest = 0;
  indexed = 0;
  complete = false;
  private readonly scope: RegExp;
  private readonly stack: { line: number; indent: number }[] = [];

  constructor(readonly language: string) {
    this.scope = SCOPE[languageFamily(language)] ?? SCOPE.default!;
  }

  static of(language: string, text: string): CodeText {
    const made = new CodeText(language);
    made.append(text, -1);
    made.complete = true;
    return made;
  }

  get text(): string {
    return this.lines.join("\n");
  }

  /** A line is drawn when it has begun: not the empty last one after a file's closing newline. */
  get lineCount(): number {
    const last = this.lines.length - 1;
    return this.lines[last] === "" && (last > 0 || !this.complete) ? last : last + 1;
  }

  append(text: string, engineMs: number): void {
    const parts = text.split("\n");
    const last = this.lines.length - 1;
    if (this.lines[last] === "" && parts[0] !== "") this.times[last] = engineMs;
    this.lines[last] += parts[0];
    for (let i = 1; i < parts.length; i++) {
      this.lines.push(parts[i]!);
      this.times.push(engineMs);
    }
  }

  /** Works out states and scopes of finished lines until `budgetMs` is used up; true when all are done. */
  index(budgetMs: number): boolean {
    const finished = this.complete ? this.lines.length : this.lines.length - 1;
    const stop = performance.now() + budgetMs;
    for (let n = 0; this.indexed < finished; n++) {
      if ((n & 63) === 63 && performance.now() > stop) return false;
      const at = this.indexed++;
      const line = this.lines[at]!;
      this.states[at + 1] = tokenizeLine(this.language, line, this.states[at]!).state;
      this.widest = Math.max(this.widest, columns(line));
      this.enclosing[at] = this.place(at, line);
    }
    return true;
  }

  private place(at: number, line: string): number {
    const indent = line.search(/\S/);
    if (indent >= 0) {
      while (this.stack.length && this.stack[this.stack.length - 1]!.indent >= indent) this.stack.pop();
    }
    const holder = this.stack[this.stack.length - 1]?.line ?? -1;
    if (indent >= 0 && this.scope.test(line)) this.stack.push({ line: at, indent });
    return holder;
  }
}

/**
 * Inline Markdown of one line, append-only: what has been given out is never changed. An opener (`*`, a backtick, `[` ...) is held
 * back until its closer has come, the line ends, or HOLD characters have passed without one; then it is plain text. The choice
 * depends on characters alone, so any split of a text into chunks gives the same result: the live view equals the final view.
 */

export type Inline =
  | { type: "text"; text: string }
  | { type: "code"; text: string }
  | { type: "em" | "strong" | "del"; children: Inline[] }
  | { type: "link"; href: string; children: Inline[] }
  | { type: "image"; href: string; alt: string };

export interface InlineResult {
  nodes: Inline[];
  /** Text not decided yet; give it back in front of what follows. */
  rest: string;
}

const HOLD = 200;
const HOLD_LINK = 600;
const SPECIAL = /[\\`*_~[!<h]/;
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const WORD = /[\p{L}\p{N}]/u;

/** A link that may be followed: http, https or mailto, nothing else. */
export function safeHref(raw: string): string | null {
  const href = raw.trim();
  return /^(https?:\/\/|mailto:)[^\s]+$/i.test(href) ? href : null;
}

/**
 * Parses `text`. `before` is the character in front of it ("" at the start of a block), `final` says that nothing follows.
 * `nested` text is complete and inside another span: no bare addresses become links inside links.
 */
export function parseInline(text: string, before: string, final: boolean, inLink = false): InlineResult {
  const nodes: Inline[] = [];
  let plain = "";
  let at = 0;
  const flush = (): void => {
    if (plain) nodes.push({ type: "text", text: plain });
    plain = "";
  };
  const previous = (): string => (at > 0 ? (text[at - 1] as string) : before);

  while (at < text.length) {
    const next = text.slice(at).search(SPECIAL);
    if (next < 0) {
      plain += text.slice(at);
      at = text.length;
      break;
    }
    plain += text.slice(at, at + next);
    at += next;
    const sign = text[at] as string;
    let step: { node: Inline | string; length: number } | "hold" | null = null;
    if (sign === "\\") step = escape(text, at, final);
    else if (sign === "`") step = codeSpan(text, at, final);
    else if (sign === "*" || sign === "_" || sign === "~") step = emphasis(text, at, previous(), final, inLink);
    else if (sign === "[") step = inLink ? null : link(text, at, final);
    else if (sign === "!") step = image(text, at, final);
    else if (sign === "<") step = angleLink(text, at, final);
    else if (sign === "h") step = inLink ? null : bareLink(text, at, previous(), final);
    if (step === "hold") {
      flush();
      return { nodes, rest: text.slice(at) };
    }
    if (step === null) {
      const run = sign === "*" || sign === "_" || sign === "~" || sign === "`" ? runLength(text, at) : 1;
      plain += text.slice(at, at + run);
      at += run;
    } else if (typeof step.node === "string") {
      plain += step.node;
      at += step.length;
    } else {
      flush();
      nodes.push(step.node);
      at += step.length;
    }
  }
  if (!final && plain.endsWith(" ")) {
    // Spaces at the end of a line are dropped or make a line break: they wait for what follows.
    const kept = plain.replace(/ +$/, "");
    const rest = plain.slice(kept.length);
    plain = kept;
    flush();
    return { nodes, rest };
  }
  flush();
  return { nodes, rest: "" };
}

type Step = { node: Inline | string; length: number } | "hold" | null;

function runLength(text: string, at: number): number {
  let end = at;
  while (text[end] === text[at]) end++;
  return end - at;
}

/** The stretch in which a closer may lie, and whether its end is certain (the limit, or the end of a final text). */
function reach(text: string, from: number, limit: number, final: boolean): { end: number; certain: boolean } {
  const hardEnd = from + limit;
  if (text.length >= hardEnd) return { end: hardEnd, certain: true };
  return { end: text.length, certain: final };
}

function escape(text: string, at: number, final: boolean): Step {
  const next = text[at + 1];
  if (next === undefined) return final ? null : "hold";
  return PUNCTUATION.test(next) ? { node: next, length: 2 } : null;
}

function codeSpan(text: string, at: number, final: boolean): Step {
  const run = runLength(text, at);
  if (at + run === text.length && !final) return "hold";
  const area = reach(text, at + run, HOLD_LINK, final);
  let from = at + run;
  while (from < area.end) {
    const start = text.indexOf("`", from);
    if (start < 0 || start >= area.end) break;
    const length = runLength(text, start);
    if (start + length === text.length && !final) return "hold";
    if (length === run) {
      let code = text.slice(at + run, start);
      if (/^ .*[^ ].* $/.test(code)) code = code.slice(1, -1);
      return { node: { type: "code", text: code }, length: start + length - at };
    }
    from = start + length;
  }
  return area.certain ? null : "hold";
}

function emphasis(text: string, at: number, before: string, final: boolean, inLink: boolean): Step {
  const sign = text[at] as string;
  const run = runLength(text, at);
  if (at + run === text.length) return final ? null : "hold";
  if (sign === "~" ? run !== 2 : run > 3) return null;
  const after = text[at + run] as string;
  if (/\s/.test(after)) return null;
  if (sign === "_" && WORD.test(before)) return null;
  if (PUNCTUATION.test(after) && WORD.test(before) && sign !== "~" && !/[`*_[~\\]/.test(after)) return null;
  const area = reach(text, at + run, HOLD, final);
  let from = at + run;
  while (from < area.end) {
    const ch = text[from] as string;
    if (ch === "\\") {
      from += 2;
      continue;
    }
    if (ch === "`") {
      const code = codeSpan(text, from, final);
      if (code === "hold") return "hold";
      from += code === null ? runLength(text, from) : code.length;
      continue;
    }
    if (ch !== sign) {
      from++;
      continue;
    }
    const length = runLength(text, from);
    if (from + length === text.length && !final) return "hold";
    const follows = text[from + length] ?? "";
    const closes = !/\s/.test(text[from - 1] as string) && !(sign === "_" && WORD.test(follows));
    if (closes && (length === run || (length > run && run < 3 && /\s|^$/.test(follows)))) {
      const inner = parseInline(text.slice(at + run, from + (length - run)), sign, true, inLink).nodes;
      const outer: Inline =
        sign === "~"
          ? { type: "del", children: inner }
          : run === 1
            ? { type: "em", children: inner }
            : run === 2
              ? { type: "strong", children: inner }
              : { type: "em", children: [{ type: "strong", children: inner }] };
      return { node: outer, length: from + length - at };
    }
    from += length;
  }
  return area.certain ? null : "hold";
}

/** `[label](target "title")` at `at`: label, target and length; null when it is none. */
function bracket(text: string, at: number, final: boolean): { label: string; target: string; length: number } | "hold" | null {
  const area = reach(text, at + 1, HOLD_LINK, final);
  let depth = 1;
  let from = at + 1;
  for (; from < area.end && depth > 0; from++) {
    if (text[from] === "\\") from++;
    else if (text[from] === "[") depth++;
    else if (text[from] === "]") depth--;
  }
  if (depth > 0) return area.certain ? null : "hold";
  if (from >= text.length) return final ? null : "hold";
  if (text[from] !== "(") return null;
  let parens = 1;
  let end = from + 1;
  for (; end < area.end && parens > 0; end++) {
    if (text[end] === "(") parens++;
    else if (text[end] === ")") parens--;
  }
  if (parens > 0) return area.certain ? null : "hold";
  const target = text
    .slice(from + 1, end - 1)
    .trim()
    .replace(/\s+["'(].*["')]$/, "")
    .replace(/^<(.*)>$/, "$1");
  return { label: text.slice(at + 1, from - 1), target, length: end - at };
}

function link(text: string, at: number, final: boolean): Step {
  const found = bracket(text, at, final);
  if (found === null || found === "hold") return found;
  const children = parseInline(found.label, "[", true, true).nodes;
  const href = safeHref(found.target);
  if (href === null) return { node: text.slice(at, at + found.length), length: found.length };
  return { node: { type: "link", href, children }, length: found.length };
}

function image(text: string, at: number, final: boolean): Step {
  if (at + 1 === text.length) return final ? null : "hold";
  if (text[at + 1] !== "[") return null;
  const found = bracket(text, at + 1, final);
  if (found === null || found === "hold") return found;
  const href = safeHref(found.target);
  if (href === null) return { node: text.slice(at, at + found.length + 1), length: found.length + 1 };
  return { node: { type: "image", href, alt: found.label }, length: found.length + 1 };
}

function angleLink(text: string, at: number, final: boolean): Step {
  const area = reach(text, at, HOLD_LINK, final);
  const sofar = text.slice(at, area.end);
  const match = /^<(https?:\/\/[^\s<>]+|mailto:[^\s<>]+)>/i.exec(sofar);
  if (match) return { node: { type: "link", href: match[1] as string, children: [{ type: "text", text: match[1] as string }] }, length: match[0].length };
  if (!area.certain && /^<(h|ht|htt|https?|https?:|https?:\/|https?:\/\/[^\s<>]*|m|ma|mai|mail|mailt|mailto|mailto:[^\s<>]*)?$/i.test(sofar)) return "hold";
  return null;
}

function bareLink(text: string, at: number, before: string, final: boolean): Step {
  if (before && WORD.test(before)) return null;
  const sofar = text.slice(at, at + HOLD_LINK);
  const open = at + sofar.length === text.length && !final;
  if (open && /^(h|ht|htt|https?|https?:|https?:\/|https?:\/\/[^\s<>*`]*)$/.test(sofar)) return "hold";
  const match = /^https?:\/\/[^\s<>*`]+/.exec(sofar);
  if (!match) return null;
  const href = match[0].replace(/[.,:;!?'")\]}]+$/, (tail) => (tail.startsWith(")") && match[0].includes("(") ? ")" : ""));
  if (href.length < 9) return null;
  return { node: { type: "link", href, children: [{ type: "text", text: href }] }, length: href.length };
}

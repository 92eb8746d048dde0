import { parser } from "@lezer/javascript";

const LOOPS = new Set(["ForStatement", "WhileStatement", "DoStatement"]);

/**
 * Puts a call of `__loop` at the start of every loop's body, without adding a line, so that a loop that never pauses ends
 * with an error in every browser, also where the frame shares the page's process. Code that does not parse stays as it is.
 */
export function guardLoops(code: string): string {
  const inserts: [number, string][] = [];
  let broken = false;
  parser.parse(code).iterate({
    enter(node) {
      if (node.type.isError) broken = true;
      if (!LOOPS.has(node.name)) return;
      const parts: { name: string; from: number; to: number }[] = [];
      for (let child = node.node.firstChild; child; child = child.nextSibling) parts.push({ name: child.name, from: child.from, to: child.to });
      const body = node.name === "DoStatement" ? parts.find((part) => part.name !== "do" && !part.name.endsWith("Comment")) : parts[parts.length - 1];
      if (!body) return;
      if (body.name === "Block") inserts.push([body.from + 1, "__loop();"]);
      else inserts.push([body.from, "{__loop();"], [body.to, "}"]);
    },
  });
  if (broken) return code;
  inserts.sort((a, b) => b[0] - a[0]);
  let guarded = code;
  for (const [at, text] of inserts) guarded = guarded.slice(0, at) + text + guarded.slice(at);
  return guarded;
}

/** The 1-based line at which code stops making sense to a parser, null where it does not. Browsers keep this to themselves in a worker. */
export function syntaxErrorLine(code: string): number | null {
  let at = -1;
  parser.parse(code).iterate({
    enter(node) {
      if (node.type.isError && at < 0) at = node.from;
      return at < 0;
    },
  });
  return at < 0 ? null : code.slice(0, at).split("\n").length;
}

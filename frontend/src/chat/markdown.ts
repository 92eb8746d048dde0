import { h } from "../shell/dom";
import { parseInline, type Inline } from "./inline";

/** Where the lines of a code fence go. */
export interface FenceSink {
  append(text: string, engineMs: number): void;
  finish(complete: boolean): void;
}

export interface MarkdownHost {
  /** Where the next block of the root goes. */
  place(): HTMLElement;
  /** A fence opens inside `parent`; the host puts its chip or block there. */
  openFence(info: string, parent: HTMLElement): FenceSink;
  /** The words for a picture that was not loaded. */
  imageLabel(alt: string): string;
}

interface Container {
  kind: "root" | "quote" | "item";
  readonly element: HTMLElement;
  /** Columns that continue an item. */
  indent: number;
  list?: HTMLElement;
  marker?: string;
}

/** One line of inline text at a time, appended to an element. */
class InlineSink {
  private pending = "";
  private before = "";
  private lineBreak: "none" | "soft" | "hard" = "none";

  constructor(
    readonly element: HTMLElement,
    private readonly host: MarkdownHost,
  ) {}

  feed(text: string): void {
    if (this.lineBreak !== "none") {
      if (this.lineBreak === "hard") this.element.append(h("br"));
      else appendText(this.element, " ");
      this.lineBreak = "none";
      this.before = " ";
    }
    this.write(this.pending + text, false);
  }

  endLine(): void {
    const hard = / {2,}$/.test(this.pending) || /(^|[^\\])\\$/.test(this.pending);
    const text = hard ? this.pending.replace(/( {2,}|\\)$/, "") : this.pending.replace(/ +$/, "");
    this.write(text, true);
    this.lineBreak = hard ? "hard" : "soft";
  }

  private write(text: string, final: boolean): void {
    const { nodes, rest } = parseInline(text, this.before, final);
    const consumed = text.length - rest.length;
    if (consumed > 0) this.before = text[consumed - 1] as string;
    this.pending = rest;
    for (const node of nodes) appendInline(this.element, node, this.host);
  }
}

function appendText(parent: HTMLElement, text: string): void {
  const last = parent.lastChild;
  if (last instanceof Text) last.appendData(text);
  else parent.append(text);
}

function appendInline(parent: HTMLElement, node: Inline, host: MarkdownHost): void {
  if (node.type === "text") {
    appendText(parent, node.text);
    return;
  }
  if (node.type === "code") {
    parent.append(h("code", { dir: "ltr" }, node.text));
    return;
  }
  if (node.type === "image") {
    const anchor = externalLink(node.href);
    anchor.append(host.imageLabel(node.alt));
    parent.append(anchor);
    return;
  }
  const element = node.type === "link" ? externalLink(node.href) : h(node.type);
  for (const child of node.children) appendInline(element, child, host);
  parent.append(element);
}

function externalLink(href: string): HTMLAnchorElement {
  return h("a", { href, rel: "noopener noreferrer nofollow", target: "_blank" });
}

interface Fence {
  sink: FenceSink;
  sign: string;
  length: number;
  indent: number;
  /** Depth of fences inside a fence of Markdown, whose inner fences have the same length. */
  nested: number;
  markdown: boolean;
}

/** Deeper quotes and lists are text: a browser ends the tab that lays out some thousand boxes within each other. */
const MOST_NESTED = 32;
const MARKER = /^( *)([-+*]|\d{1,9}[.)])( +)(?=\S)/;
const EMPTY_ITEM = /^( *)([-+*]|\d{1,9}[.)]) *$/;
const FENCE = /^( *)(`{3,}|~{3,})(.*)$/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const HEADING = /^ {0,3}(#{1,6})(?: +|$)/;
const DELIMITER = /^ *\|? *:?-+:? *(\| *:?-+:? *)*\|? *$/;
/** Starts that may still become several things: wait for more of the line. */
const UNDECIDED = /^ *(?:[-*_](?: *[-*_])*|\+|#{1,6}|\d{1,9}[.)]?|`{1,2}|~{1,2})? *$/;

/**
 * Append-only Markdown: a finished block is never touched again, and the elements depend on the text alone, not on how it was cut
 * into pieces. Raw HTML is shown as text.
 */
export class MarkdownView {
  private buffer = "";
  private engineMs = 0;
  private midline = false;
  private readonly containers: Container[];
  private inline: InlineSink | null = null;
  private inlineIsParagraph = false;
  private fence: Fence | null = null;
  private table: { body: HTMLElement; columns: number } | null = null;
  private tableHead: { line: string; parent: HTMLElement } | null = null;

  constructor(private readonly host: MarkdownHost) {
    const root: Container = {
      kind: "root",
      indent: 0,
      get element() {
        return host.place();
      },
    };
    this.containers = [root];
  }

  append(text: string, engineMs: number): void {
    this.engineMs = engineMs;
    this.buffer += text.includes("\r") ? text.replaceAll("\r", "") : text;
    this.consume(false);
  }

  /** Ends the text; `complete` is false when the answer was cut off. */
  end(complete: boolean): void {
    this.consume(true);
    if (this.tableHead) this.headIsText();
    this.closeLeaf();
    if (this.fence) {
      this.fence.sink.finish(complete);
      this.fence = null;
    }
  }

  private consume(final: boolean): void {
    let from = 0;
    const text = this.buffer;
    while (from < text.length) {
      const newline = text.indexOf("\n", from);
      const complete = newline >= 0 || final;
      const end = newline >= 0 ? newline : text.length;
      if (this.midline) {
        this.feed(text.slice(from, end));
        if (!complete) {
          from = end;
          break;
        }
        this.endLine();
      } else {
        const used = this.startLine(text.slice(from, end), complete);
        if (used < 0) break;
        if (!complete) {
          from += used;
          this.midline = true;
          continue;
        }
      }
      from = newline >= 0 ? newline + 1 : text.length;
    }
    this.buffer = text.slice(from);
  }

  private feed(text: string): void {
    if (!text) return;
    if (this.fence) this.fence.sink.append(text, this.engineMs);
    else this.inline?.feed(text);
  }

  private endLine(): void {
    this.midline = false;
    if (this.fence) this.fence.sink.append("\n", this.engineMs);
    else this.inline?.endLine();
    if (!this.inlineIsParagraph) this.inline = null;
  }

  /** Starts a line; gives the characters used (all of them when `complete`), or -1 when more must be seen first. */
  private startLine(line: string, complete: boolean): number {
    if (this.fence) {
      const used = this.fenceLine(line, complete);
      if (used !== null) return used;
    }
    const place = this.matchContainers(line, complete);
    if (place === null) return -1;
    let { at } = place;
    const depth = place.depth;
    const fresh: { kind: "quote" | "item"; indent: number; marker: string }[] = [];
    let rest = line.slice(at);
    if (rest.trim() === "") {
      if (!complete) return -1;
      this.blank(depth);
      return line.length;
    }
    if (this.tableHead) {
      if (!complete && /^[ |:-]*$/.test(rest)) return -1;
      if (complete && DELIMITER.test(rest) && rest.includes("-")) {
        this.openTable();
        return line.length;
      }
      this.headIsText();
    }
    if (this.table && depth === this.containers.length && rest.includes("|")) {
      if (!complete) return -1;
      this.tableRow(rest, "td", this.table.body);
      return line.length;
    }
    if (this.table && !complete) return -1;
    for (;;) {
      rest = line.slice(at);
      if (!complete && UNDECIDED.test(rest)) return -1;
      if (depth + fresh.length > MOST_NESTED) break;
      const quote = /^ {0,3}> ?/.exec(rest);
      if (quote) {
        if (!complete && quote[0].length === rest.length) return -1;
        fresh.push({ kind: "quote", indent: 0, marker: ">" });
        at += quote[0].length;
        continue;
      }
      if (RULE.test(rest)) break;
      const item = MARKER.exec(rest) ?? (complete ? EMPTY_ITEM.exec(rest) : null);
      if (item && (item[1] as string).length < 4 + 4 * fresh.length && this.mayOpenItem(item[2] as string, depth, fresh.length, rest)) {
        const padding = Math.min((item[3] ?? " ").length, 4);
        const indent = (item[1] as string).length + (item[2] as string).length + (padding > 3 ? 1 : padding || 1);
        fresh.push({ kind: "item", indent, marker: item[2] as string });
        at += item[0].length;
        if (at >= line.length) break;
        continue;
      }
      break;
    }
    rest = line.slice(at);
    if (!complete && (/^ *\|/.test(rest) || FENCE.test(rest))) return -1;

    const fence = FENCE.exec(rest);
    const heading = HEADING.exec(rest);
    const rule = RULE.test(rest) && fresh.every((one) => one.kind === "quote");
    const isFence = fence !== null && !((fence[2] as string)[0] === "`" && (fence[3] as string).includes("`"));
    const isTable = /^ *\|.*\|/.test(rest);
    if (fresh.length === 0 && !isFence && !heading && !rule && !isTable && this.inline && this.inlineIsParagraph) {
      return this.text(line, at + leadingSpaces(rest), complete); // goes on with the open paragraph, indented or not
    }
    this.closeLeaf();
    this.openContainers(depth, fresh);
    const parent = this.top().element;
    if (rest.trim() === "") return line.length;
    if (isFence) {
      this.openFence(fence, parent);
      return line.length;
    }
    if (rule) {
      parent.append(h("hr"));
      return line.length;
    }
    if (isTable) {
      this.tableHead = { line: rest, parent };
      return line.length;
    }
    if (heading) {
      const level = Math.min(6, (heading[1] as string).length + 2) as 3 | 4 | 5 | 6;
      this.inline = new InlineSink(h(`h${level}`, { dir: "auto" }), this.host);
      this.inlineIsParagraph = false;
      parent.append(this.inline.element);
      return this.text(line, at + heading[0].length, complete);
    }
    this.openParagraph(parent);
    return this.text(line, at + leadingSpaces(rest), complete);
  }

  private top(): Container {
    return this.containers[this.containers.length - 1] as Container;
  }

  /** Feeds a decided line from `at` on. */
  private text(line: string, at: number, complete: boolean): number {
    this.inline?.feed(line.slice(at));
    if (complete) this.endLine();
    return line.length;
  }

  private openParagraph(parent: HTMLElement): void {
    const bare = parent.tagName === "LI" && parent.childNodes.length === 0;
    const element = bare ? h("span", { dir: "auto" }) : h("p", { dir: "auto" });
    parent.append(element);
    this.inline = new InlineSink(element, this.host);
    this.inlineIsParagraph = true;
  }

  /** How far the open containers continue on this line. Null: more must be seen. */
  private matchContainers(line: string, complete: boolean): { at: number; depth: number } | null {
    let at = 0;
    let depth = 1;
    for (; depth < this.containers.length; depth++) {
      const container = this.containers[depth] as Container;
      const rest = line.slice(at);
      if (container.kind === "quote") {
        const match = /^ {0,3}> ?/.exec(rest);
        if (!match) {
          if (!complete && /^ {0,3}$/.test(rest)) return null;
          break;
        }
        if (!complete && match[0].length === rest.length) return null;
        at += match[0].length;
        continue;
      }
      if (rest.trim() === "") {
        if (!complete) return null;
        continue;
      }
      const indent = leadingSpaces(rest);
      // Two columns are taken as enough for a nested list under "1. ", as people and models write it.
      if (indent >= container.indent) at += container.indent;
      else if (indent >= 2 && /^ *([-+*]|\d{1,9}[.)])( |$)/.test(rest)) at += indent;
      else if (!complete && indent >= 2 && /^ *([-+*]|\d{1,9}[.)]?)$/.test(rest)) return null;
      else break;
    }
    return { at, depth };
  }

  /** A numbered line other than 1 does not break a paragraph, unless it goes on with a list. */
  private mayOpenItem(marker: string, depth: number, freshCount: number, rest: string): boolean {
    if (!this.inline || !this.inlineIsParagraph || freshCount > 0) return true;
    if (depth < this.containers.length && this.containers[depth]?.kind === "item") return true;
    if (EMPTY_ITEM.test(rest)) return false;
    return !/^\d/.test(marker) || /^0*1[.)]$/.test(marker);
  }

  private openContainers(depth: number, fresh: { kind: "quote" | "item"; indent: number; marker: string }[]): void {
    const next = this.containers[depth];
    this.containers.length = depth;
    let sibling: Container | undefined = next;
    for (const one of fresh) {
      if (one.kind === "quote") {
        const element = h("blockquote");
        this.top().element.append(element);
        this.containers.push({ kind: "quote", element, indent: 0 });
      } else {
        const kind = /\d/.test(one.marker) ? `1${one.marker.slice(-1)}` : one.marker;
        const list = sibling?.kind === "item" && sibling.marker === kind && sibling.list ? sibling.list : this.openList(one.marker, this.top().element);
        const element = h("li");
        list.append(element);
        this.containers.push({ kind: "item", element, indent: one.indent, list, marker: kind });
      }
      sibling = undefined;
    }
  }

  private openList(marker: string, parent: HTMLElement): HTMLElement {
    const number = Number.parseInt(marker, 10);
    const list = Number.isNaN(number) ? h("ul") : h("ol", { start: number === 1 ? null : number });
    parent.append(list);
    return list;
  }

  private blank(depth: number): void {
    if (this.tableHead) this.headIsText();
    this.closeLeaf();
    const outer = this.containers.findIndex((container, index) => index >= depth && container.kind === "quote");
    if (outer > 0) this.containers.length = outer;
  }

  private closeLeaf(): void {
    if (this.midline) this.endLine();
    this.inline = null;
    this.table = null;
  }

  private openFence(match: RegExpExecArray, parent: HTMLElement): void {
    const info = (match[3] as string).trim();
    const ticks = match[2] as string;
    this.fence = {
      sink: this.host.openFence(info, parent),
      sign: ticks[0] as string,
      length: ticks.length,
      indent: (match[1] as string).length + this.containers.reduce((sum, one) => sum + one.indent, 0),
      nested: 0,
      markdown: /^(md|markdown)\b/i.test(info),
    };
  }

  /** A line while a fence is open: null when the fence ended with its quote and the line is to be read anew. */
  private fenceLine(line: string, complete: boolean): number | null {
    const fence = this.fence as Fence;
    let at = 0;
    for (const container of this.containers) {
      if (container.kind !== "quote") continue;
      const match = /^ {0,3}> ?/.exec(line.slice(at));
      if (match) {
        if (!complete && match[0].length === line.length - at) return -1;
        at += match[0].length;
      } else {
        if (!complete && /^ {0,3}$/.test(line.slice(at))) return -1;
        this.closeFence();
        return null;
      }
    }
    const rest = line.slice(at);
    if (!complete && /^ *[`~]*\s*$/.test(rest)) return -1;
    const ticks = /^ *(`{3,}|~{3,})(.*)$/.exec(rest);
    if (ticks && fence.markdown && !complete) return -1;
    if (ticks && (ticks[1] as string)[0] === fence.sign && (ticks[1] as string).length >= fence.length) {
      const tail = (ticks[2] as string).trim();
      if (tail === "" && complete) {
        if (fence.nested === 0) {
          this.closeFence();
          return line.length;
        }
        fence.nested--;
      } else if (tail === "" && !complete) return -1;
      else if (fence.markdown && /^[\w+#.-]+$/.test(tail)) fence.nested++;
    }
    const start = at + Math.min(leadingSpaces(rest), fence.indent);
    const text = line.slice(start);
    if (text) fence.sink.append(text, this.engineMs);
    if (complete) fence.sink.append("\n", this.engineMs);
    return line.length;
  }

  private closeFence(): void {
    this.fence?.sink.finish(true);
    this.fence = null;
  }

  private headIsText(): void {
    const head = this.tableHead;
    this.tableHead = null;
    if (!head) return;
    this.openParagraph(head.parent);
    this.inline?.feed(head.line.trim());
    this.inline?.endLine();
  }

  private openTable(): void {
    const head = this.tableHead;
    this.tableHead = null;
    if (!head) return;
    const body = h("tbody");
    const top = h("thead");
    const scroller = h("div", { class: "tablewrap", tabindex: "0" }, h("table", null, top, body));
    head.parent.append(scroller);
    this.table = { body, columns: 0 };
    this.tableRow(head.line, "th", top);
  }

  private tableRow(line: string, cell: "th" | "td", parent: HTMLElement): void {
    const inner = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
    const cells = inner.split(/(?<!\\)\|/).map((text) => text.trim().replaceAll("\\|", "|"));
    const table = this.table as { columns: number };
    if (cell === "th") table.columns = cells.length;
    const row = h("tr");
    for (let column = 0; column < table.columns; column++) {
      const element = cell === "th" ? h("th", { dir: "auto", scope: "col" }) : h("td", { dir: "auto" });
      const sink = new InlineSink(element, this.host);
      sink.feed(cells[column] ?? "");
      sink.endLine();
      row.append(element);
    }
    parent.append(row);
  }
}

function leadingSpaces(text: string): number {
  return text.length - text.trimStart().length;
}

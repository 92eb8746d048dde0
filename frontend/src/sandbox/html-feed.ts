import type { SourceFile } from "./protocol";

const SCRIPT_OPEN = /<script\b(?:"[^"]*"|'[^']*'|[^"'>])*>/i;
const STYLE_LINK = /<link\b(?:"[^"]*"|'[^']*'|[^"'>])*>/gi;
const attribute = (tag: string, name: string): string | null => {
  const found = new RegExp(`\\b${name}\\s*=\\s*(?:"([^"]*)"|'([^']*)'|([^\\s>]+))`, "i").exec(tag);
  return found ? (found[1] ?? found[2] ?? found[3] ?? "") : null;
};

/**
 * Feeds a growing HTML text to a preview in pieces that are safe to write: a script is held back until it is whole, so that its
 * loops can be guarded, and files of the same chat take the place of links to them.
 */
export class HtmlFeed {
  private buffer = "";
  private line = 1;

  constructor(
    private readonly guard: (code: string) => string,
    private readonly files: SourceFile[] = [],
  ) {}

  /** What can be written now that `text` has arrived. */
  push(text: string): string {
    this.buffer += text;
    let ready = "";
    for (;;) {
      const open = SCRIPT_OPEN.exec(this.buffer);
      if (!open) break;
      const from = open.index + open[0].length;
      const close = /<\/script\s*>/i.exec(this.buffer.slice(from));
      if (!close) return ready + this.take(open.index);
      const code = this.buffer.slice(from, from + close.index);
      ready += this.take(open.index);
      ready += this.script(open[0], code);
      this.skip(open[0].length + close.index + close[0].length);
    }
    // The end may be the beginning of a tag that matters here.
    const tail = this.buffer.lastIndexOf("<");
    const held = tail >= 0 && !this.buffer.includes(">", tail) ? tail : this.buffer.length;
    return ready + this.take(held);
  }

  /** The rest, complete or not. */
  end(): string {
    return this.take(this.buffer.length);
  }

  private take(length: number): string {
    const piece = this.buffer.slice(0, length);
    this.skip(length);
    return piece.replace(STYLE_LINK, (tag) => {
      const file = /stylesheet/i.test(attribute(tag, "rel") ?? "") && this.file(attribute(tag, "href"));
      return file ? `<style>${file.code.replace(/<\/style/gi, "<\\/style")}</style>` : tag;
    });
  }

  private skip(length: number): void {
    this.line += this.buffer.slice(0, length).split("\n").length - 1;
    this.buffer = this.buffer.slice(length);
  }

  private script(tag: string, code: string): string {
    const type = (attribute(tag, "type") ?? "").toLowerCase();
    if (type && !/^(module|text\/javascript|application\/javascript|text\/babel)$/.test(type)) return `${tag}${code}</script>`;
    const source = attribute(tag, "src");
    const file = this.file(source);
    if (source !== null && !file) return `${tag}${code}</script>`;
    const place = file ? `file:${file.name}` : `line:${this.line + tag.split("\n").length - 1}`;
    const open = file ? tag.replace(/\s(?:src|integrity|crossorigin)\s*=\s*(?:"[^"]*"|'[^']*'|[^\s>]+)/gi, "") : tag;
    return `${open}${this.guard(file ? file.code : code).replace(/<\/script/gi, "<\\/script")}\n//# sourceURL=${place}\n</script>`;
  }

  private file(address: string | null): SourceFile | undefined {
    const name = address?.replace(/^\.?\//, "").replace(/[?#].*$/, "");
    return name ? this.files.find((file) => file.name === name) : undefined;
  }
}

import { describe, expect, it } from "vitest";
import { HtmlFeed } from "../src/sandbox/html-feed";
import { guardLoops, syntaxErrorLine } from "../src/sandbox/loop-guard";
import { CodeText } from "../src/workbench/code-text";
import { tokenizeLine } from "../src/workbench/tokens";

/** Lines with their coloured parts as `[class:text]`. */
function coloured(language: string, code: string): string[] {
  let state = "";
  return code.split("\n").map((line) => {
    const tokens = tokenizeLine(language, line, state);
    state = tokens.state;
    return tokens.spans.map((span) => `${span.cls}:${line.slice(span.from, span.to)}`).join(" ");
  });
}

describe("colours of a line", () => {
  it("carries a Python string over lines", () => {
    expect(coloured("py", 'x = """a\nb # no comment\nc""" + str(1)  # end')).toEqual(['st:"""a', "st:b # no comment", 'st:c""" ty:str nu:1 co:# end']);
  });
  it("tells keywords, types, prefixes and numbers apart", () => {
    expect(coloured("python", "def f(cell: Cell) -> None: return f'{x}', 0xFF, 1e-3, a.type")).toEqual(["k:def ty:Cell k:None k:return st:f'{x}' nu:0xFF nu:1e-3"]);
  });
  it("tells a regular expression from a division", () => {
    expect(coloured("js", "const a = /[/]x/g; b = c / d / e; // end")).toEqual(["k:const st:/[/]x/g co:// end"]);
  });
  it("colours scripts and styles inside HTML", () => {
    expect(coloured("html", '<p class="a">let</p>\n<script>\nlet a = `x\ny`;\n</script>\n<style>\na { color: #fff; }\n</style><!-- x\ny -->')).toEqual([
      'k:<p ty:class st:"a" k:> k:</p k:>',
      "k:<script k:>",
      "k:let st:`x",
      "st:y`",
      "k:</script k:>",
      "k:<style k:>",
      "ty:color nu:#fff",
      "k:</style k:> co:<!-- x",
      "co:y -->",
    ]);
  });
  it("stops after a very long line's beginning", () => {
    expect(tokenizeLine("js", "1 ".repeat(50_000), "").spans.length).toBe(1000);
  });

  it("spends no time on lines made to be slow", () => {
    const before = process.cpuUsage().user;
    for (const language of ["css", "html", "js", "python", "sql", "sh"]) {
      for (const part of ["a-", "<", "/[", '"\\', "'", "<a '", "0x", "/*", "`", "--"]) tokenizeLine(language, part.repeat(1000), "");
    }
    expect((process.cpuUsage().user - before) / 1000).toBeLessThan(500); // ms
  });

  it("colours the properties of CSS, not its selectors", () => {
    const words = (line: string): string[] => tokenizeLine("css", line, "").spans.filter((span) => span.cls === "ty").map((span) => line.slice(span.from, span.to));
    expect(words("  font-size : 1px; --gap: 2px; color: red")).toEqual(["font-size", "--gap", "color"]);
    expect(words("a:hover, p::before {")).toEqual([]);
  });
});

describe("text that is written", () => {
  it("keeps lines, times and enclosing definitions the same however it is cut", () => {
    const code = "class A:\n    def f(self):\n        x = 1\n\n        return x\n\ny = 2\n";
    for (const size of [1, 3, 1000]) {
      const text = new CodeText("python");
      for (let at = 0; at < code.length; at += size) text.append(code.slice(at, at + size), at);
      text.complete = true;
      expect(text.index(1000)).toBe(true);
      expect(text.text).toBe(code);
      expect(text.lineCount).toBe(7);
      expect(text.enclosing.slice(0, 7)).toEqual([-1, 0, 1, 1, 1, 1, -1]);
      expect(text.times.every((time, line) => line === 0 || time >= text.times[line - 1]!)).toBe(true);
    }
  });
});

describe("the loop guard", () => {
  it("guards every kind of loop and adds no line", () => {
    const code = "for (;;) {\n}\nwhile (a) b();\ndo { c() } while (d)\nfor (const e of f) for (const g in h) i();\n";
    const guarded = guardLoops(code);
    expect(guarded.split("__loop();").length - 1).toBe(5);
    expect(guarded.split("\n").length).toBe(code.split("\n").length);
    expect(() => new Function(guarded)).not.toThrow();
  });
  it("leaves text and broken code alone", () => {
    expect(guardLoops("const s = 'while (true) {}'; // for (;;) {}")).toBe("const s = 'while (true) {}'; // for (;;) {}");
    expect(guardLoops("while (true {")).toBe("while (true {");
    expect(syntaxErrorLine("let a = 1;\nlet b = ;\n")).toBe(2);
    expect(syntaxErrorLine("let a = 1;\n")).toBe(null);
  });
});

describe("the feed of a preview", () => {
  const page = '<!doctype html>\n<h1 title="a > b">x</h1>\n<script>\nwhile(1){}\n</script>\n<p>end</p><script src=app.js></script><link rel="stylesheet" href="./a.css"><script type="application/json">{"while":1}</script>';
  const files = [
    { name: "app.js", code: "let app = '</script>';" },
    { name: "a.css", code: "p{}" },
  ];
  it("gives the same document however the text is cut, and never half a script", () => {
    const whole = new HtmlFeed(guardLoops, files);
    const expected = whole.push(page) + whole.end();
    expect(expected).toContain("while(1){__loop();}\n\n//# sourceURL=line:3");
    expect(expected).toContain("let app = '<\\/script>';\n//# sourceURL=file:app.js");
    expect(expected).toContain("<style>p{}</style>");
    expect(expected).toContain('{"while":1}</script>');
    for (const size of [1, 7, 40]) {
      const feed = new HtmlFeed(guardLoops, files);
      let written = "";
      for (let at = 0; at < page.length; at += size) {
        written += feed.push(page.slice(at, at + size));
        expect((written.match(/<script/g) ?? []).length).toBe((written.match(/<\/script>/g) ?? []).length);
      }
      expect(written + feed.end()).toBe(expected);
    }
  });
});

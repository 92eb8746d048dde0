import { describe, expect, it } from "vitest";
import { MarkdownView, type MarkdownHost } from "../src/chat/markdown";

function render(text: string, cuts: number[] = []): { html: string; files: string[] } {
  const root = document.createElement("div");
  const files: string[] = [];
  const host: MarkdownHost = {
    place: () => root,
    imageLabel: (alt) => `Image: ${alt}`,
    openFence(info, parent) {
      const index = files.push(`[${info}]`) - 1;
      const chip = document.createElement("b");
      chip.textContent = info;
      parent.append(chip);
      return { append: (part) => void (files[index] += part), finish: (complete) => void (files[index] += complete ? "." : "!") };
    },
  };
  const view = new MarkdownView(host);
  let from = 0;
  for (const cut of [...cuts, text.length]) {
    view.append(text.slice(from, cut), cut);
    from = cut;
  }
  view.end(true);
  return { html: root.innerHTML, files };
}

const SAMPLE = `# Title with \`code\` and **bold**

A paragraph with *emphasis*, **strong _nested_ text**, ~~gone~~, 2 * 3 * 4, **kwargs and snake_case_name.
It goes on here with a [link](https://example.org/a_(b) "title") and https://example.org/x?y=1. Hard break\\
next line  
another [bad](javascript:alert(1)) and ![pic](https://example.org/p.png) and <https://a.example/>.

- one
- two with \`code span\`
  continued
  - nested **deep**
    1. deeper
    2. more
- [ ] three

3. third
4. fourth

> quote **strong**
> goes on
> - item in quote
lazy

| a | b |
|---|:-:|
| 1 | \`x\\|y\` |
| **2** | |

| not a table |
just text

\`\`\`python title="bfs.py"
def f(**kw):
    """doc \`\`\` inline"""
    return {}

\`\`\`

1. Step:
   \`\`\`sh
   pip install x
   \`\`\`
2. Next

\`\`\`\`md
\`\`\`js
1
\`\`\`
\`\`\`\`

\`\`\`markdown
text
\`\`\`python
x = 1
\`\`\`
end
\`\`\`

***both*** and * not a list item? -- dash
---
שלום **עולם** 👩‍👩‍👧 é <script>alert(1)</script> <b>x</b>
~~~
tilde
`;

describe("markdown", { timeout: 60_000 }, () => {
  it("renders blocks and spans", () => {
    const { html, files } = render(SAMPLE);
    expect(html).toContain("<h3 dir=\"auto\">Title with <code dir=\"ltr\">code</code> and <strong>bold</strong></h3>");
    expect(html).toContain("<strong>strong <em>nested</em> text</strong>");
    expect(html).toContain("2 * 3 * 4, **kwargs and snake_case_name.");
    expect(html).toContain('href="https://example.org/a_(b)"');
    expect(html).toContain("[bad](javascript:alert(1))");
    expect(html).not.toContain("javascript:alert(1)\"");
    expect(html).not.toContain("<img");
    expect(html).not.toContain("<script");
    expect(html).toContain('<ol start="3"><li><span dir="auto">third</span></li><li><span dir="auto">fourth</span></li></ol>');
    expect(html).toContain("<td dir=\"auto\"><code dir=\"ltr\">x|y</code></td>");
    expect(html).toContain("| not a table | just text");
    expect(files[0]).toBe('[python title="bfs.py"]def f(**kw):\n    """doc ``` inline"""\n    return {}\n\n.');
    expect(files[1]).toBe("[sh]pip install x\n.");
    expect(files[2]).toBe("[md]```js\n1\n```\n.");
    expect(files[3]).toBe("[markdown]text\n```python\nx = 1\n```\nend\n.");
    expect(files[4]).toBe("[]tilde\n.");
  });

  it("gives the same elements however the text is cut", () => {
    const whole = render(SAMPLE);
    const each = Array.from({ length: SAMPLE.length - 1 }, (_, index) => index + 1);
    expect(render(SAMPLE, each)).toEqual(whole);
    let seed = 7;
    const random = (): number => (seed = (seed * 1103515245 + 12345) % 2147483648) / 2147483648;
    for (let round = 0; round < 60; round++) {
      const cuts = Array.from({ length: 1 + Math.floor(random() * 40) }, () => Math.floor(random() * SAMPLE.length)).sort((a, b) => a - b);
      expect(render(SAMPLE, cuts)).toEqual(whole);
    }
  });

  it("gives the same elements for random text of special characters", () => {
    let seed = 3;
    const random = (): number => (seed = (seed * 1103515245 + 12345) % 2147483648) / 2147483648;
    const alphabet = ["*", "**", "_", "`", "``", "[", "](", ")", "!", "a", "b ", " ", "  ", "\n", "\n\n", "- ", "1. ", "> ", "|", "---", "# ", "```", "~~", "\\", "<", ">", "https://x.y", "h", "    "];
    for (let round = 0; round < 200; round++) {
      const text = Array.from({ length: 60 }, () => alphabet[Math.floor(random() * alphabet.length)]).join("");
      const each = Array.from({ length: text.length - 1 }, (_, index) => index + 1);
      expect(render(text, each), JSON.stringify(text)).toEqual(render(text));
    }
  });

  it.each([
    ["quotes", "> ".repeat(5000)],
    ["lists", "- ".repeat(5000)],
    ["both", "> - ".repeat(2500)],
    ["lines", Array.from({ length: 100 }, (_, level) => `${"  ".repeat(level)}- x`).join("\n")],
  ])("takes deep %s as text", (_name, text) => {
    const { html } = render(`${text}end\n\nafter`);
    const root = document.createElement("div");
    root.innerHTML = html;
    let depth = 0;
    for (let at = [...root.querySelectorAll("*")].at(-2); at && at !== root; at = at.parentElement ?? undefined) depth++;
    expect(depth).toBeLessThan(70);
    expect(root.textContent).toContain("end");
    expect(root.textContent?.endsWith("after")).toBe(true);
    for (const cut of [1, 7, 63, 64, 65, 66, 130]) expect(render(`${text}end\n\nafter`, [cut]).html).toBe(html);
  });

  it("never changes what it has drawn", () => {
    const root = document.createElement("div");
    const view = new MarkdownView({ place: () => root, imageLabel: (alt) => alt, openFence: () => ({ append() {}, finish() {} }) });
    let before = "";
    for (const ch of SAMPLE) {
      view.append(ch, 0);
      const now = root.textContent ?? "";
      expect(now.startsWith(before)).toBe(true);
      before = now;
    }
  });
});

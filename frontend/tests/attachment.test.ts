import { expect, it } from "vitest";
import { decoded, fenced, filesIn, plainName, textFile } from "../src/chat/attachment";
import { languageOf } from "../src/chat/files";
import { LogView } from "../src/chat/log";
import { Conversation } from "../src/store/conversation";

const LIMIT = 5_000_000;
const read = (name: string, content: BlobPart, folder = false) => textFile({ file: new File([content], name), folder }, LIMIT);
const bytes = (...values: number[]) => new Uint8Array(values).buffer;

it("knows the language of a fence by the file's name", () => {
  const names = ["a.py", "A.PY", "b.tar.ts", "c.yml", "d.lua", "e.svg", "run.sh", ".gitignore", "Makefile", "f.", "g.ü", "h.a b", "x.constructor", "x.__proto__"];
  expect(names.map(languageOf)).toEqual(["python", "python", "typescript", "yaml", "lua", "html", "sh", "gitignore", "text", "text", "text", "text", "constructor", "text"]);
});

it("closes a fence only at its end, whatever the file holds", () => {
  expect(fenced("a.py", "x = 1\n")).toBe("a.py\n\n```python\nx = 1\n```");
  expect(fenced("a.py", "x = 1")).toBe("a.py\n\n```python\nx = 1\n```");
  expect(fenced("a.md", "```js\n1\n```\n")).toBe("a.md\n\n````markdown\n```js\n1\n```\n````");
  expect(fenced("a.txt", "x`````y `z`\n\n")).toBe("a.txt\n\n``````txt\nx`````y `z`\n\n``````");
});

it("takes from a file's name what would end its line, turn it round or begin a fence", async () => {
  const names = ["a\n```\nb.c", "a\u2028```x.py", "```.py", "\n```.py", "\u202egpj.exe", "``` ```.md", "a`b`.c", "été 👩‍🚀.txt", "تقرير.txt"];
  expect(names.map(plainName)).toEqual(["a ``` b.c", "a ```x.py", ".py", ".py", "gpj.exe", ".md", "a`b`.c", "été 👩‍🚀.txt", "تقرير.txt"]);
  await expect(read("\u202egpj.exe", bytes(0x89))).rejects.toThrow(/^gpj.exe is not text/);
  expect((await read("```.py", "x\n")).text).toBe(".py\n\n```python\nx\n```");
});

it("takes UTF-8 and nothing else for text", () => {
  expect(decoded(new TextEncoder().encode("\ufeffé 😀\r\n").buffer)).toBe("é 😀\r\n");
  expect(decoded(bytes(0xe9, 0x0a))).toBeNull(); // Latin-1
  expect(decoded(bytes(0x61, 0x00))).toBeNull(); // UTF-16
  expect(decoded(bytes(0xff, 0xfe, 0x61, 0x00))).toBeNull();
  expect(decoded(bytes(0x89, 0x50, 0x4e, 0x47))).toBeNull(); // PNG
});

it("counts lines as an editor does, and small files in tenths of a kB", async () => {
  expect(await read("a.py", "x = 1\ny = 2\n")).toEqual({ name: "a.py", text: "a.py\n\n```python\nx = 1\ny = 2\n```", lines: 2, kb: 0.1 });
  expect(await read("b.txt", "é".repeat(10_000))).toMatchObject({ lines: 1, kb: 20 });
});

it("says why a file is not attached", async () => {
  await expect(read("a.png", bytes(0x89))).rejects.toThrow("a.png is not text in UTF-8.");
  await expect(read("big.log", "x".repeat(LIMIT + 1))).rejects.toThrow("big.log is 5.1\u00a0MB; the limit is 5\u00a0MB.");
  await expect(read("big.log", "x".repeat(LIMIT))).resolves.toMatchObject({ kb: 5000 });
  await expect(textFile({ file: new File(["xx"], "b.log"), folder: false }, LIMIT, 1)).rejects.toThrow("b.log has no room beside the others; the limit of a message is 5\u00a0MB.");
  await expect(read("none.txt", "")).rejects.toThrow("none.txt is empty.");
  await expect(read("mark.txt", bytes(0xef, 0xbb, 0xbf))).rejects.toThrow("mark.txt is empty.");
  await expect(read("src", "", true)).rejects.toThrow("src is a folder; attach its files.");
  const gone = Object.assign(new File(["x"], "gone.txt"), { arrayBuffer: () => Promise.reject(new DOMException("gone", "NotReadableError")) });
  await expect(textFile({ file: gone, folder: false }, LIMIT)).rejects.toThrow("gone.txt cannot be read.");
});

it("finds the files of what was dropped, and knows a folder among them", () => {
  const item = (name: string | null, isDirectory?: boolean) => ({ getAsFile: () => name && new File([], name), webkitGetAsEntry: () => (isDirectory === undefined ? null : { isDirectory }) });
  const data = { items: [item("a.py", false), item(null), item("src", true), item("pasted.txt")] } as unknown as DataTransfer;
  expect(filesIn(data).map(({ file, folder }) => [file.name, folder])).toEqual([["a.py", false], ["src", true], ["pasted.txt", false]]);
});

it("shows what was sent as it was typed, and code in fences as code", () => {
  const shown = (content: string): [string, string][] => {
    const log = new LogView({} as never, {} as never, () => document.createElement("div"));
    log.show(new Conversation(null, ""));
    log.addUser({ id: "1", parentId: null, role: "user", content, run: null });
    return [...log.element.querySelectorAll(".said > :not(button)")].map((one) => [one.tagName, one.textContent ?? ""]);
  };
  expect(shown("  two\n\nlines")).toEqual([["P", "  two\n\nlines"]]);
  expect(shown("not ```a fence``` here")).toEqual([["P", "not ```a fence``` here"]]);
  expect(shown(`Why?\n${fenced("a.md", "```\nx\n```\n")}\n\n${fenced("b.py", "")}`)).toEqual([
    ["P", "Why?\na.md"],
    ["PRE", "markdown```\nx\n```"],
    ["P", "b.py"],
    ["PRE", "python"],
  ]);
  const long = shown(fenced("c.txt", "line\n".repeat(2000)));
  expect(long[1]?.[1].split("\n")).toEqual(["txtline", ...Array<string>(10).fill("line"), "…"]);
});

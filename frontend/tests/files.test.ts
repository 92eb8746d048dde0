import { describe, expect, it, vi } from "vitest";
import { kindOf, needsFirstLine, uniqueName } from "../src/chat/files";
import { en } from "../src/i18n/en";
import { fr } from "../src/i18n/fr";
import { fileName, fromMarkdown, importChat, importParts, readImport, toMarkdown } from "../src/shell/exchange";

const kind = (info: string, line: string | null = null): [string, string | null] => {
  const { language, name } = kindOf(info, line);
  return [language, name];
};

describe("files of code fences", () => {
  it("takes names from the info string, a first comment, or the language", () => {
    expect(kind('python title="src/bfs.py"')).toEqual(["python", "bfs.py"]);
    expect(kind("python:bfs.py")).toEqual(["python", "bfs.py"]);
    expect(kind("ts app.ts")).toEqual(["typescript", "app.ts"]);
    expect(kind("python", "# dijkstra.py")).toEqual(["python", "dijkstra.py"]);
    expect(kind("html", "<!-- page.html -->")).toEqual(["html", "page.html"]);
    expect(kind("python", "import os")).toEqual(["python", "main.py"]);
    expect(kind("", "def f():")).toEqual(["python", "main.py"]);
    expect(kind("", "hello")).toEqual(["text", null]);
    expect(kind("bash")).toEqual(["bash", null]);
    expect(kind("brainfuck", "+++")).toEqual(["brainfuck", "snippet.txt"]);
    expect([needsFirstLine("bash"), needsFirstLine("python"), needsFirstLine("python a.py")]).toEqual([false, true, false]);
  });

  it("never uses a name twice in one answer", () => {
    expect(uniqueName("main.py", new Set(["main.py", "main-2.py"]))).toBe("main-3.py");
  });
});

describe("words", () => {
  it("French has every key, and each text the same placeholders", () => {
    const marks = (text: string): string[] => [...new Set(text.match(/\{\w+\}/g) ?? [])].sort();
    for (const [key, text] of Object.entries(en)) expect(marks(fr[key as keyof typeof en]), key).toEqual(marks(text));
  });
});

describe("export and import", () => {
  it("reads its own Markdown", () => {
    const stored = { id: "c", title: "A chat", messages: [
      { id: "1", parent_id: null, role: "user" as const, content: "Hi\n\n## not a heading of ours", created_at: "", generation: null },
      { id: "2", parent_id: "1", role: "assistant" as const, content: "```python\nx = 1\n```", created_at: "", generation: null },
    ] };
    const read = fromMarkdown(toMarkdown(stored));
    expect(read.title).toBe("A chat");
    expect(read.messages.map((one) => [one.role, one.content])).toEqual([["user", "Hi\n\n## not a heading of ours"], ["assistant", "```python\nx = 1\n```"]]);
  });

  it("names a file by its title, whatever that holds", () => {
    expect(["Cheapest path!", "", "👩‍👩‍👧‍👦", "<img src=x>", "हिन्दी", "𝒳".repeat(70)].map(fileName)).toEqual(["Cheapest-path", "chat", "chat", "img-src-x", "हिन्दी", "𝒳".repeat(60)]);
  });

  it("keeps a message that holds the mark between messages, and its first spaces", () => {
    const forged = "    indented\n\n<!-- assistant -->\n## Answer\n\n<!--\\ user -->\n# not the title";
    const stored = { id: "c", title: "", messages: [{ id: "1", parent_id: null, role: "user" as const, content: forged, created_at: "", generation: null }] };
    expect(fromMarkdown(toMarkdown(stored))).toEqual({ title: "", messages: [{ id: "1", parent_id: null, role: "user", content: forged }] });
    expect(fromMarkdown(toMarkdown(stored).replaceAll("\n", "\r\n")).messages[0]?.content).toBe(forged);
  });

  it.each(["null", "[]", "7", '{"messages":[null]}', '{"messages":[{"content":7}]}', '{"messages":{}}'])("says that %s is no chat", async (text) => {
    await expect(readImport(new File([text], "x.json"))).rejects.toThrow(expect.objectContaining({ code: "import_invalid" }));
  });

  it("says that a file which has gone cannot be read", async () => {
    const gone = Object.assign(new File([], "gone.json"), { text: () => Promise.reject(new DOMException("gone", "NotReadableError")) });
    await expect(readImport(gone)).rejects.toThrow("gone.json cannot be read.");
  });

  it("takes ids that are numbers, and the beginning of a title that is too long", async () => {
    const messages = [{ id: 1, parent_id: null, role: "user", content: "a" }, { id: 2, parent_id: 1, role: "assistant", content: "b" }];
    const chat = await readImport(new File([JSON.stringify({ title: "😀".repeat(201), messages })], "x.json"));
    expect(chat.title).toBe("😀".repeat(200));
    expect(chat.messages.map((one) => [one.id, one.parent_id])).toEqual([["1", null], ["2", "1"]]);
  });

  it("sends a long chat in parts that the server takes, all of it and in order", () => {
    const messages = Array.from({ length: 2500 }, (_, n) => ({ id: String(n), parent_id: n ? String(n - 1) : null, role: "user", content: n % 500 ? "é" : "é".repeat(20_000) }));
    const parts = importParts({ title: "Long", messages }, 100_000);
    expect(parts.flatMap((part) => part.messages)).toEqual(messages);
    for (const part of parts) {
      expect(part.messages.length).toBeLessThanOrEqual(1000);
      expect(new Blob([JSON.stringify({ ...part, conversation_id: crypto.randomUUID() })]).size).toBeLessThan(100_000);
    }
    expect(parts.length).toBe(5);
    expect(importParts({ title: "", messages: messages.slice(0, 1) }, Infinity).length).toBe(1);
  });

  it("takes back a chat of which a part was refused", async () => {
    const called: string[] = [];
    vi.stubGlobal("fetch", (path: string, init: RequestInit) => {
      called.push(`${init.method} ${path}`);
      const body = called.length === 2 ? { code: "invalid_request", message: "no" } : { id: "7" };
      return Promise.resolve(new Response(init.method === "DELETE" ? null : JSON.stringify(body), { status: init.method === "DELETE" ? 204 : called.length === 2 ? 400 : 201 }));
    });
    const messages = Array.from({ length: 1001 }, (_, n) => ({ id: String(n), parent_id: null, role: "user", content: "x" }));
    const heard: number[] = [];
    await expect(importChat({ title: "", messages }, Infinity, (done) => heard.push(done))).rejects.toThrow("no");
    expect(called).toEqual(["POST /api/conversations/import", "POST /api/conversations/import", "DELETE /api/conversations/7"]);
    expect(heard).toEqual([1000]);
    vi.unstubAllGlobals();
  });

  it("waits where the limit of copies a minute is reached, and then goes on", async () => {
    vi.useFakeTimers();
    const answers: [number, unknown][] = [
      [201, { id: "7" }],
      [429, { code: "rate_limited", message: "", details: { limited: "copies", span: "minute", limit: 1, retry_after_s: 11.4 } }],
      [201, { id: "7" }],
    ];
    const called: string[] = [];
    vi.stubGlobal("fetch", (path: string, init: RequestInit) => {
      called.push(`${init.method} ${path}`);
      const [status, body] = answers.shift()!;
      return Promise.resolve(new Response(JSON.stringify(body), { status }));
    });
    const messages = Array.from({ length: 1001 }, (_, n) => ({ id: String(n), parent_id: null, role: "user", content: "x" }));
    const heard: [number, number][] = [];
    const done = importChat({ title: "", messages }, Infinity, (...words) => heard.push(words));
    await vi.advanceTimersByTimeAsync(11_900);
    expect(called.length).toBe(2);
    await vi.advanceTimersByTimeAsync(200);
    expect(await done).toBe("7");
    expect(heard).toEqual([[1000, 0], [1000, 12], [1000, 2]]);
    vi.unstubAllGlobals();
    vi.useRealTimers();
  });

  it("takes back what is there once the connection is back, when that was lost in the middle", async () => {
    vi.useFakeTimers();
    const called: string[] = [];
    vi.stubGlobal("fetch", (path: string, init: RequestInit) => {
      called.push(`${init.method} ${path}`);
      if (called.length === 2 || called.length === 3) return Promise.reject(new TypeError("Failed to fetch"));
      return Promise.resolve(new Response(init.method === "DELETE" ? null : '{"id": "7"}', { status: init.method === "DELETE" ? 204 : 201 }));
    });
    const messages = Array.from({ length: 1001 }, (_, n) => ({ id: String(n), parent_id: null, role: "user", content: "x" }));
    await expect(importChat({ title: "", messages }, Infinity, () => undefined)).rejects.toThrow("No connection.");
    await vi.advanceTimersByTimeAsync(60_000);
    expect(called.slice(2)).toEqual(["DELETE /api/conversations/7", "DELETE /api/conversations/7"]);
    vi.unstubAllGlobals();
    vi.useRealTimers();
  });

  it("takes back what is there when the page is left in the middle", async () => {
    const called: string[] = [];
    vi.stubGlobal("fetch", (path: string, init: RequestInit) => {
      called.push(`${init.method} ${path}`);
      if (called.length === 2) dispatchEvent(new Event("pagehide"));
      return Promise.resolve(new Response('{"id": "7"}', { status: 201 }));
    });
    const messages = Array.from({ length: 1001 }, (_, n) => ({ id: String(n), parent_id: null, role: "user", content: "x" }));
    await importChat({ title: "", messages }, Infinity, () => undefined);
    dispatchEvent(new Event("pagehide")); // all of it is there: it stays
    expect(called).toEqual(["POST /api/conversations/import", "POST /api/conversations/import", "DELETE /api/conversations/7"]);
    vi.unstubAllGlobals();
  });
});

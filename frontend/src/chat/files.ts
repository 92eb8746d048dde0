/** What a code fence becomes: a file of the workbench, or a plain block in the answer (commands, output). */
export interface FenceKind {
  language: string;
  /** null: stays in the answer as a plain block. */
  name: string | null;
}

const PLAIN = new Set(["sh", "bash", "shell", "zsh", "console", "shell-session", "text", "txt", "plain", "plaintext", "output", "diff", "log"]);

const LANGUAGES: Record<string, [string, string]> = {
  py: ["python", "main.py"],
  python: ["python", "main.py"],
  python3: ["python", "main.py"],
  html: ["html", "index.html"],
  css: ["css", "style.css"],
  js: ["javascript", "script.js"],
  javascript: ["javascript", "script.js"],
  jsx: ["javascript", "snippet.jsx"],
  ts: ["typescript", "snippet.ts"],
  typescript: ["typescript", "snippet.ts"],
  tsx: ["typescript", "snippet.tsx"],
  json: ["json", "data.json"],
  sql: ["sql", "query.sql"],
  md: ["markdown", "text.md"],
  markdown: ["markdown", "text.md"],
  yaml: ["yaml", "config.yaml"],
  yml: ["yaml", "config.yaml"],
  toml: ["toml", "config.toml"],
  c: ["c", "main.c"],
  cpp: ["cpp", "main.cpp"],
  "c++": ["cpp", "main.cpp"],
  java: ["java", "Main.java"],
  go: ["go", "main.go"],
  rust: ["rust", "main.rs"],
  rs: ["rust", "main.rs"],
  ruby: ["ruby", "main.rb"],
  php: ["php", "index.php"],
  xml: ["xml", "data.xml"],
  svg: ["html", "image.svg"],
};

const NAME = /^[\w@-][\w./@-]{0,79}\.[a-z][a-z0-9]{0,7}$/i;

function nameIn(text: string): string | null {
  const found = text.replace(/^.*\//, "");
  return NAME.test(found) ? found : null;
}

/** Whether the first line of code is needed to tell the name or the language. */
export function needsFirstLine(info: string): boolean {
  const kind = kindOf(info, null);
  return !kind.sure;
}

/** Language and name of a fence from its info string and, where given, its first line. */
export function kindOf(info: string, firstLine: string | null): FenceKind & { sure: boolean } {
  const words = info.split(/\s+/).filter(Boolean);
  const [tag = "", tagName] = (words[0] ?? "").split(":");
  const given =
    nameIn(/(?:title|file|filename|name)=["']?([^"'\s]+)/i.exec(info)?.[1] ?? "") ?? nameIn(tagName ?? "") ?? nameIn(words[1] ?? "") ?? nameIn(tag);
  const key = tag.toLowerCase().replace(/^\{?\.?|\}$/g, "");
  const known = LANGUAGES[key] ?? LANGUAGES[extension(given ?? "")];
  if (given) return { language: known?.[0] ?? (key || "text"), name: given, sure: true };
  if (PLAIN.has(key)) return { language: key, name: null, sure: true };
  if (firstLine === null) return { language: known?.[0] ?? (key || "text"), name: known?.[1] ?? null, sure: false };
  const comment = /^\s*(?:#|\/\/|--|<!--|\/\*)\s*([\w./@-]+)\s*(?:-->|\*\/)?\s*$/.exec(firstLine);
  const commented = nameIn(comment?.[1] ?? "");
  if (commented) return { language: known?.[0] ?? LANGUAGES[extension(commented)]?.[0] ?? "text", name: commented, sure: true };
  if (known) return { language: known[0], name: known[1], sure: true };
  if (key) return { language: key, name: `snippet.${/^[a-z0-9]{1,8}$/.test(key) ? key : "txt"}`, sure: true };
  const guess = guessLanguage(firstLine);
  return guess ? { language: (LANGUAGES[guess] as [string, string])[0], name: (LANGUAGES[guess] as [string, string])[1], sure: true } : { language: "text", name: null, sure: true };
}

function extension(name: string): string {
  return name.slice(name.lastIndexOf(".") + 1).toLowerCase();
}

/** The word of a fence for a file of this name: the language, or its extension where that says more than "text". */
export function languageOf(name: string): string {
  const end = extension(name);
  return LANGUAGES[end]?.[0] ?? (name.includes(".") && /^[a-z][a-z0-9+-]{0,11}$/.test(end) ? end : "text");
}

function guessLanguage(line: string): string | null {
  if (/^\s*(import \w|from \w+ import|def \w|class \w+.*:|print\(|@\w|"""|if __name__|#!.*python)/.test(line)) return "python";
  if (/^\s*<(!doctype|html|head|body|div|svg)\b/i.test(line)) return "html";
  if (/^\s*(const|let|var|function|export|import) .*/.test(line)) return "javascript";
  if (/^\s*(select|create table|with|insert into)\b/i.test(line)) return "sql";
  return null;
}

/** `main.py` the first time in one answer, then `main-2.py`, `main-3.py`. */
export function uniqueName(name: string, taken: ReadonlySet<string>): string {
  if (!taken.has(name)) return name;
  const dot = name.lastIndexOf(".");
  for (let n = 2; ; n++) {
    const candidate = `${name.slice(0, dot)}-${n}${name.slice(dot)}`;
    if (!taken.has(candidate)) return candidate;
  }
}

/**
 * Colours one line of code at a time. A line is coloured once, when it ends, and the same function colours the editor,
 * so nothing changes colour when a file is opened for editing.
 */

export type TokenClass = "k" | "st" | "nu" | "co" | "ty";

export interface Span {
  from: number;
  to: number;
  cls: TokenClass;
}

/** What a line leaves open for the next one: "" for nothing, else an opaque word. */
export type LineState = string;

export interface LineTokens {
  spans: Span[];
  state: LineState;
}

interface Grammar {
  keywords: Set<string>;
  types: Set<string>;
  lineComments: string[];
  blockComment?: [string, string];
  /** Delimiters, longest first; those in `multiline` may stay open at the end of a line. */
  strings: string[];
  multiline: Set<string>;
  capitalsAreTypes: boolean;
  regexLiterals?: boolean;
}

const words = (text: string): Set<string> => new Set(text.split(" "));

const C_KEYWORDS =
  "break case class const continue default do else enum extends false final finally for if implements import in interface new null package private protected public return static super switch this throw true try void volatile while";

const PYTHON: Grammar = {
  keywords: words(
    "False None True and as assert async await break case class continue def del elif else except finally for from global if import in is lambda match nonlocal not or pass raise return try while with yield",
  ),
  types: words("bool bytes bytearray complex dict float frozenset int list object range set str tuple type"),
  lineComments: ["#"],
  strings: ['"""', "'''", '"', "'"],
  multiline: new Set(['"""', "'''"]),
  capitalsAreTypes: true,
};

const SCRIPT: Grammar = {
  keywords: words(
    C_KEYWORDS +
      " abstract as async await debugger declare delete export from function get instanceof keyof let namespace of readonly satisfies set type typeof undefined var with yield",
  ),
  types: words("any bigint boolean never number object string symbol unknown"),
  lineComments: ["//"],
  blockComment: ["/*", "*/"],
  strings: ["`", '"', "'"],
  multiline: new Set(["`"]),
  capitalsAreTypes: true,
  regexLiterals: true,
};

const C_LIKE: Grammar = {
  keywords: words(
    C_KEYWORDS +
      " auto constexpr crate defer delete fn func go goto impl let loop match mod move mut namespace operator pub range ref self sizeof struct template trait type typedef typename union unsafe use using var virtual where",
  ),
  types: words(
    "bool boolean byte char double f32 f64 float i16 i32 i64 i8 int int32_t int64_t isize long short signed size_t str string u16 u32 u64 u8 uint8_t uint32_t uint64_t unsigned usize",
  ),
  lineComments: ["//"],
  blockComment: ["/*", "*/"],
  strings: ['"', "'", "`"],
  multiline: new Set(["`"]),
  capitalsAreTypes: true,
};

const SHELL: Grammar = {
  keywords: words("case do done elif else esac exit export fi for function if in local return set then until while"),
  types: new Set(),
  lineComments: ["#"],
  strings: ['"', "'"],
  multiline: new Set(['"', "'"]),
  capitalsAreTypes: false,
};

const SQL: Grammar = {
  keywords: words(
    "ADD ALL ALTER AND AS ASC BEGIN BETWEEN BY CASE COMMIT CREATE DELETE DESC DISTINCT DROP ELSE END EXISTS FOREIGN FROM GROUP HAVING IN INDEX INNER INSERT INTO IS JOIN KEY LEFT LIKE LIMIT NOT NULL ON OR ORDER OUTER PRIMARY REFERENCES SELECT SET TABLE THEN UNION UNIQUE UPDATE VALUES VIEW WHEN WHERE WITH add all alter and as asc begin between by case commit create delete desc distinct drop else end exists foreign from group having in index inner insert into is join key left like limit not null on or order outer primary references select set table then union unique update values view when where with",
  ),
  types: words("BOOLEAN DATE FLOAT INTEGER NUMERIC REAL TEXT TIMESTAMP VARCHAR boolean date float integer numeric real text timestamp varchar"),
  lineComments: ["--"],
  blockComment: ["/*", "*/"],
  strings: ["'", '"'],
  multiline: new Set(["'"]),
  capitalsAreTypes: false,
};

const DATA: Grammar = {
  keywords: words("true false null yes no"),
  types: new Set(),
  lineComments: ["#", "//"],
  strings: ['"', "'"],
  multiline: new Set(),
  capitalsAreTypes: false,
};

const GRAMMARS: Record<string, Grammar> = { python: PYTHON, javascript: SCRIPT, typescript: SCRIPT, c: C_LIKE, shell: SHELL, sql: SQL, data: DATA };

const ALIASES: Record<string, string> = {
  py: "python", python3: "python", js: "javascript", jsx: "javascript", mjs: "javascript", node: "javascript", ts: "typescript", tsx: "typescript",
  htm: "html", xml: "html", svg: "html", vue: "html", scss: "css", less: "css", sh: "shell", bash: "shell", zsh: "shell", console: "shell",
  json: "data", yaml: "data", yml: "data", toml: "data", ini: "data",
  "c++": "c", cpp: "c", cc: "c", h: "c", hpp: "c", java: "c", rust: "c", rs: "c", go: "c", kotlin: "c", kt: "c", swift: "c", cs: "c", csharp: "c", php: "c", cuda: "c", dart: "c", scala: "c",
};

/** The family a fence's language word belongs to ("py" is "python"); unknown words stay as they are and get no colours. */
export function languageFamily(language: string): string {
  const name = language.trim().toLowerCase();
  return ALIASES[name] ?? name;
}

const IDENTIFIER = /[A-Za-z_$][\w$]*/y;
const NUMBER = /0[xX][\da-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?[A-Za-z%]*/y;
const STRING_PREFIX = /(?:[rbfuRBFU]{1,2})(?=["'])/y;
const REGEX = /\/(?![*/])(?:\\.|\[(?:\\.|[^\]\\])*\]|[^/\\[])+\/[a-z]*/y;
const LONGEST_COLOURED = 2000;

function matchAt(pattern: RegExp, line: string, at: number): string | null {
  pattern.lastIndex = at;
  return pattern.exec(line)?.[0] ?? null;
}

/** The end of a string that is open at `at`, or -1 when the line ends first. */
function stringEnd(line: string, at: number, delimiter: string): number {
  for (let i = at; i < line.length; i++) {
    if (line[i] === "\\") i++;
    else if (line.startsWith(delimiter, i)) return i + delimiter.length;
  }
  return -1;
}

function scan(grammar: Grammar, line: string, start: LineState, spans: Span[], base = 0): LineState {
  let at = 0;
  let lastSignificant = "";
  const add = (from: number, to: number, cls: TokenClass): void => {
    if (to > from) spans.push({ from: base + from, to: base + to, cls });
  };
  if (start) {
    const comment = grammar.blockComment && start === grammar.blockComment[0];
    const end = comment ? line.indexOf(grammar.blockComment![1]) : stringEnd(line, 0, start);
    const stop = end < 0 ? line.length : comment ? end + grammar.blockComment![1].length : end;
    add(0, stop, comment ? "co" : "st");
    if (end < 0) return start;
    at = stop;
  }
  while (at < line.length) {
    const ch = line[at]!;
    if (ch === " " || ch === "\t") {
      at++;
      continue;
    }
    if (grammar.lineComments.some((mark) => line.startsWith(mark, at))) {
      add(at, line.length, "co");
      return "";
    }
    if (grammar.blockComment && line.startsWith(grammar.blockComment[0], at)) {
      const end = line.indexOf(grammar.blockComment[1], at + 2);
      add(at, end < 0 ? line.length : end + 2, "co");
      if (end < 0) return grammar.blockComment[0];
      at = end + 2;
      continue;
    }
    const prefix = grammar === PYTHON ? (matchAt(STRING_PREFIX, line, at) ?? "") : "";
    const delimiter = grammar.strings.find((mark) => line.startsWith(mark, at + prefix.length));
    if (delimiter) {
      const end = stringEnd(line, at + prefix.length + delimiter.length, delimiter);
      add(at, end < 0 ? line.length : end, "st");
      if (end < 0) return grammar.multiline.has(delimiter) ? delimiter : "";
      at = end;
      lastSignificant = '"';
      continue;
    }
    if (grammar.regexLiterals && ch === "/" && (lastSignificant === "" || "(,=:[!&|?{};+".includes(lastSignificant))) {
      const literal = matchAt(REGEX, line, at);
      if (literal) {
        add(at, at + literal.length, "st");
        at += literal.length;
        lastSignificant = '"';
        continue;
      }
    }
    const word = matchAt(IDENTIFIER, line, at);
    if (word) {
      const member = lastSignificant === ".";
      if (!member && grammar.keywords.has(word)) add(at, at + word.length, "k");
      else if (!member && (grammar.types.has(word) || (grammar.capitalsAreTypes && /^[A-Z]\w*[a-z]/.test(word)))) add(at, at + word.length, "ty");
      at += word.length;
      lastSignificant = grammar.keywords.has(word) ? "(" : "a";
      continue;
    }
    if ((ch >= "0" && ch <= "9") || (ch === "." && line[at + 1]! >= "0" && line[at + 1]! <= "9")) {
      const number = matchAt(NUMBER, line, at) ?? ch;
      add(at, at + number.length, "nu");
      at += number.length;
      lastSignificant = "0";
      continue;
    }
    lastSignificant = ch;
    at++;
  }
  return "";
}

const CSS_TOKEN = /\/\*|"(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?|@[\w-]+|#[\da-fA-F]{3,8}\b|-?(?:\d+\.?\d*|\.\d+)[A-Za-z%]*|--[\w-]+|[A-Za-z-][\w-]*/g;

function scanCss(line: string, start: LineState, spans: Span[], base = 0): LineState {
  let at = 0;
  const add = (from: number, to: number, cls: TokenClass): void => void spans.push({ from: base + from, to: base + to, cls });
  const comment = (from: number, search: number): boolean => {
    const end = line.indexOf("*/", search);
    add(from, end < 0 ? line.length : end + 2, "co");
    at = end + 2;
    return end >= 0;
  };
  if (start === "/*" && !comment(0, 0)) return "/*";
  const selector = line.trimEnd().endsWith("{");
  for (;;) {
    CSS_TOKEN.lastIndex = at;
    const found = CSS_TOKEN.exec(line);
    if (!found) return "";
    const token = found[0];
    at = found.index + token.length;
    if (token === "/*") {
      if (!comment(found.index, at)) return "/*";
    } else if (token[0] === '"' || token[0] === "'") add(found.index, at, "st");
    else if (token[0] === "@") add(found.index, at, "k");
    else if (/^[#.\d]|^-[.\d]/.test(token)) add(found.index, at, "nu");
    else if (!selector && (token.startsWith("--") || /^\s*:/.test(line.slice(at, at + 40)))) add(found.index, at, "ty");
  }
}

const TAG_PART = /"[^"]*"?|'[^']*'?|\/?>|[^\s"'>/=]+|[\s/=]/y;

/** HTML states: "" text, "<!--" comment, "<NAME" inside a start tag, "script|…" and "style|…" inside those elements. */
function scanHtml(line: string, start: LineState, spans: Span[]): LineState {
  let at = 0;
  let state = start;
  while (at < line.length || (state.includes("|") && at === 0)) {
    const embedded = state.indexOf("|");
    if (embedded > 0) {
      const name = state.slice(0, embedded);
      const close = line.toLowerCase().indexOf(`</${name}`, at);
      const part = close < 0 ? line.slice(at) : line.slice(at, close);
      const inner = name === "script" ? scan(SCRIPT, part, state.slice(embedded + 1), spans, at) : scanCss(part, state.slice(embedded + 1), spans, at);
      if (close < 0) return `${name}|${inner}`;
      at = close;
      state = "";
    }
    if (state === "<!--") {
      const end = line.indexOf("-->", at);
      spans.push({ from: at, to: end < 0 ? line.length : end + 3, cls: "co" });
      if (end < 0) return state;
      at = end + 3;
      state = "";
    } else if (state.startsWith("<")) {
      TAG_PART.lastIndex = at;
      const part = TAG_PART.exec(line)?.[0] ?? line[at]!;
      if (part.endsWith(">")) {
        const name = state.slice(1);
        spans.push({ from: at, to: at + part.length, cls: "k" });
        state = part === ">" && (name === "script" || name === "style") ? `${name}|` : "";
      } else if (part[0] === '"' || part[0] === "'") spans.push({ from: at, to: at + part.length, cls: "st" });
      else if (/[\w@:#-]/.test(part[0]!)) spans.push({ from: at, to: at + part.length, cls: "ty" });
      at += part.length;
    } else {
      const open = line.indexOf("<", at);
      if (open < 0) return "";
      if (line.startsWith("<!--", open)) {
        state = "<!--";
        at = open;
        continue;
      }
      const tag = /^<[/!]?[A-Za-z][\w:-]*/.exec(line.slice(open))?.[0];
      at = open + (tag?.length ?? 1);
      if (tag) {
        spans.push({ from: open, to: at, cls: "k" });
        state = "<" + tag.replace(/^<[/!]?/, tag[1] === "/" ? "/" : "").toLowerCase();
      }
    }
  }
  return state;
}

/** Coloured spans of `line` (no newline in it), given the state the line before left. */
export function tokenizeLine(language: string, line: string, state: LineState): LineTokens {
  const spans: Span[] = [];
  const family = languageFamily(language);
  const text = line.length > LONGEST_COLOURED ? line.slice(0, LONGEST_COLOURED) : line;
  const grammar = GRAMMARS[family];
  if (grammar) return { spans, state: scan(grammar, text, state, spans) };
  if (family === "html") return { spans, state: scanHtml(text, state, spans) };
  if (family === "css") return { spans, state: scanCss(text, state, spans) };
  return { spans, state: "" };
}

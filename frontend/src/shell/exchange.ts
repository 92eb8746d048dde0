import { api, ApiError, toJson, type ImportBody } from "../api/http";
import type { StoredConversation, StoredMessage } from "../api/types";
import { t } from "../i18n";
import { downloadFile } from "./dom";

const FORMAT = "playground-conversation-1";
/** A message may hold the line that parts messages: it gets a backslash, and loses it when it is read. */
const MARK = /^<!--(\\* (?:user|assistant|system) -->)$/gm;
const ESCAPED_MARK = /^<!--\\(\\* (?:user|assistant|system) -->)$/gm;
const HEADINGS: Record<string, string> = { user: "You", assistant: "Answer", system: "System" };

function textOf(message: StoredMessage): string {
  return message.generation?.text || message.content;
}

/** The newest branch as Markdown, or the whole tree as JSON. */
export function exportConversation(stored: StoredConversation, kind: "json" | "markdown"): void {
  const name = fileName(stored.title);
  if (kind === "json") downloadFile(`${name}.json`, "application/json", JSON.stringify({ format: FORMAT, ...stored }, null, 2));
  else downloadFile(`${name}.md`, "text/markdown", toMarkdown(stored));
}

/** Letters and numbers of a title, whole, joined by dashes. */
export function fileName(title: string): string {
  const words = title.replace(/[^\p{L}\p{M}\p{N}]+/gu, "-");
  return [...words].slice(0, 60).join("").replace(/^-|-$/g, "") || "chat";
}

export function toMarkdown(stored: StoredConversation): string {
  const parts = [`# ${stored.title}`];
  for (const message of newestPath(stored.messages)) parts.push(`<!-- ${message.role} -->\n## ${HEADINGS[message.role]}`, textOf(message).trimEnd().replace(MARK, "<!--\\$1"));
  return parts.join("\n\n") + "\n";
}

function newestPath(messages: StoredMessage[]): StoredMessage[] {
  const byParent = new Map<string, StoredMessage>();
  for (const message of messages) byParent.set(message.parent_id ?? "", message);
  const out: StoredMessage[] = [];
  for (let next = byParent.get(""); next; next = byParent.get(next.id)) out.push(next);
  return out;
}

/** Reads an export of this program (JSON or Markdown). Throws with the reason when it is none. */
export async function readImport(file: File): Promise<ImportBody> {
  const { name } = file;
  const text = await file.text().catch(() => {
    throw new ApiError(0, "import_invalid", t("file_unread", { name }));
  });
  const body = /\.json$/i.test(name) || text.trimStart().startsWith("{") ? fromJson(text) : fromMarkdown(text);
  if (body.messages.length === 0) throw new ApiError(0, "import_empty", t("import_empty", { name }));
  return { ...body, title: [...body.title].slice(0, TITLE_CHARS).join("") };
}

const PART_MESSAGES = 1000; // what the server takes at once
const TITLE_CHARS = 200;
const RETRY_MS = 2000;
const SAY_SECONDS = 10; // a screen reader says each

/** A chat in requests that the server takes: `limitBytes` is its limit of one. */
export function importParts(body: ImportBody, limitBytes: number): ImportBody[] {
  const room = limitBytes - 2000; // the title and what surrounds the messages
  const parts: ImportBody[] = [];
  let bytes = Infinity;
  for (const message of body.messages) {
    const size = new Blob([toJson(message)]).size + 1;
    let part = parts[parts.length - 1];
    if (!part || bytes + size > room || part.messages.length === PART_MESSAGES) {
      part = { title: body.title, messages: [] };
      parts.push(part);
      bytes = 0;
    }
    part.messages.push(message);
    bytes += size;
  }
  return parts;
}

/**
 * Stores a chat, whole or not at all, also when the page is left. `onProgress` hears how many of its messages are there and,
 * while the server lets the next ones wait, for how many seconds. The new chat's id.
 */
export async function importChat(body: ImportBody, limitBytes: number, onProgress: (done: number, waitSeconds: number) => void): Promise<string> {
  let id = "";
  let done = 0;
  const takeBack = (): void => void (id && removeOnceReachable(id));
  addEventListener("pagehide", takeBack);
  try {
    for (const part of importParts(body, limitBytes)) {
      if (id) onProgress(done, 0);
      ({ id } = id ? await storePart({ ...part, conversation_id: id }, (seconds) => onProgress(done, seconds)) : await api.importConversation(part));
      done += part.messages.length;
    }
  } catch (error) {
    takeBack();
    throw error;
  } finally {
    removeEventListener("pagehide", takeBack);
  }
  return id;
}

/** Also when the connection is lost: the part of a chat that is there must not stay. */
async function removeOnceReachable(id: string): Promise<void> {
  let lost = true;
  while (lost) {
    lost = await api.remove(id).then(
      () => false,
      (error: unknown) => error instanceof ApiError && error.code === "offline",
    );
    if (lost) await new Promise((next) => setTimeout(next, RETRY_MS));
  }
}

/** A further part, once the limit of copies a minute allows it. */
async function storePart(part: ImportBody, onWait: (seconds: number) => void): Promise<{ id: string }> {
  for (;;) {
    try {
      return await api.importConversation(part);
    } catch (error) {
      if (!(error instanceof ApiError && error.code === "rate_limited" && error.details?.span === "minute")) throw error;
      for (let left = Math.ceil(Number(error.details.retry_after_s)) || 1; left > 0; left -= SAY_SECONDS) {
        onWait(left);
        await new Promise((next) => setTimeout(next, 1000 * Math.min(left, SAY_SECONDS)));
      }
    }
  }
}

function fromJson(text: string): ImportBody {
  let parsed: (Partial<StoredConversation> & { format?: string }) | null;
  try {
    parsed = JSON.parse(text) as typeof parsed;
  } catch {
    throw new ApiError(0, "import_invalid", t("import_not_json"));
  }
  if (!Array.isArray(parsed?.messages) || !parsed.messages.every(isMessage)) throw new ApiError(0, "import_invalid", t("import_not_ours"));
  const messages = parsed.messages.map((message) => ({
    id: String(message.id),
    parent_id: message.parent_id == null ? null : String(message.parent_id),
    role: message.role,
    content: textOf(message),
  }));
  return { title: String(parsed.title ?? ""), messages };
}

function isMessage(value: unknown): value is StoredMessage {
  return typeof value === "object" && value !== null && typeof textOf(value as StoredMessage) === "string";
}

export function fromMarkdown(text: string): ImportBody {
  const [head = "", ...parts] = text.replaceAll("\r\n", "\n").split(/^<!-- (user|assistant|system) -->\n## .*\n*/m);
  const title = /^# (.+)$/m.exec(head)?.[1]?.trim() ?? "";
  const messages: ImportBody["messages"] = [];
  for (let index = 0; index < parts.length; index += 2) {
    const content = (parts[index + 1] ?? "").trimEnd().replace(ESCAPED_MARK, "<!--$1");
    messages.push({ id: String(messages.length + 1), parent_id: messages.length ? String(messages.length) : null, role: parts[index] as string, content });
  }
  return { title, messages };
}

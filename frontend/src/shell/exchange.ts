import { api, ApiError, type ImportBody } from "../api/http";
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
  const name = (stored.title || "chat").replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60);
  if (kind === "json") downloadFile(`${name}.json`, "application/json", JSON.stringify({ format: FORMAT, ...stored }, null, 2));
  else downloadFile(`${name}.md`, "text/markdown", toMarkdown(stored));
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
export function readImport(fileName: string, text: string): ImportBody {
  const body = /\.json$/i.test(fileName) || text.trimStart().startsWith("{") ? fromJson(text) : fromMarkdown(text);
  if (body.messages.length === 0) throw new ApiError(0, "import_empty", t("import_empty", { name: fileName }));
  return body;
}

const PART_MESSAGES = 1000; // what the server takes at once

/** A chat in requests that the server takes: `limitBytes` is its limit of one. */
export function importParts(body: ImportBody, limitBytes: number): ImportBody[] {
  const room = limitBytes - 2000; // the title and what surrounds the messages
  const parts: ImportBody[] = [];
  let bytes = Infinity;
  for (const message of body.messages) {
    const size = new Blob([JSON.stringify(message)]).size + 1;
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

/** Stores a chat, whole or not at all; `onProgress` hears how many of its messages are there. The new chat's id. */
export async function importChat(body: ImportBody, limitBytes: number, onProgress: (done: number) => void): Promise<string> {
  let id = "";
  let done = 0;
  try {
    for (const part of importParts(body, limitBytes)) {
      if (id) onProgress(done);
      ({ id } = await api.importConversation(id ? { ...part, conversation_id: id } : part));
      done += part.messages.length;
    }
  } catch (error) {
    if (id) await api.remove(id).catch(() => undefined);
    throw error;
  }
  return id;
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
    parent_id: message.parent_id ?? null,
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

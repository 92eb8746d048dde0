import type { ConversationRow, ErrorBody, ModelCard, StoredConversation } from "./types";

/** An answer of the JSON API that is not a success; `code` is the server's own name for it. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly details?: ErrorBody["details"],
  ) {
    super(message);
  }
}

/** JSON of what people typed or pasted. Databases hold no NUL, and half a surrogate pair is no text: both become U+FFFD. */
export function toJson(value: unknown): string {
  return JSON.stringify(value, (_key, part: unknown) => (typeof part === "string" ? part.replace(/[\0\p{Surrogate}]/gu, "\uFFFD") : part));
}

/** Of what is too large, in megabytes: its size, rounded up so that what is just over the limit does not claim to be at it, and the limit. */
export function megabytes(bytes: number, limitBytes: number): { mb: number; limit: number } {
  return { mb: Math.ceil(bytes / 1e5) / 10, limit: limitBytes / 1e6 };
}

function csrfToken(): string {
  const cookie = document.cookie.split("; ").find((part) => part.startsWith("csrftoken="));
  if (cookie) return decodeURIComponent(cookie.slice("csrftoken=".length));
  return document.querySelector<HTMLMetaElement>('meta[name="csrf-token"]')?.content ?? "";
}

export async function call<T>(method: string, path: string, body?: unknown): Promise<T> {
  const headers: Record<string, string> = { Accept: "application/json" };
  if (method !== "GET") headers["X-CSRFToken"] = csrfToken();
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response: Response;
  try {
    const init: RequestInit = { method, headers, credentials: "same-origin" };
    if (body !== undefined) init.body = toJson(body);
    init.keepalive = method === "DELETE"; // what could be undone is done when the page goes away
    response = await fetch(path, init);
  } catch {
    throw new ApiError(0, "offline", "No connection.");
  }
  if (response.status === 204) return undefined as T;
  const text = await response.text();
  let parsed: unknown = null;
  try {
    parsed = text ? JSON.parse(text) : null;
  } catch {
    /* an HTML error page: the status line below says what is known */
  }
  if (!response.ok) {
    const error = (parsed ?? {}) as Partial<ErrorBody>;
    throw new ApiError(response.status, error.code ?? `http_${response.status}`, error.message ?? `The server answered ${response.status}.`, error.details);
  }
  return parsed as T;
}

export interface ConversationPage {
  items: ConversationRow[];
  next: string | null;
}

export interface ImportBody {
  conversation_id?: string;
  title: string;
  messages: { id: string; parent_id: string | null; role: string; content: string }[];
}

export const api = {
  models: () => call<ModelCard[]>("GET", "/api/models"),
  conversations: (query = "", before = "") =>
    call<ConversationPage>("GET", `/api/conversations?q=${encodeURIComponent(query)}&before=${encodeURIComponent(before)}`),
  conversation: (id: string) => call<StoredConversation>("GET", `/api/conversations/${encodeURIComponent(id)}`),
  rename: (id: string, title: string) => call<unknown>("PATCH", `/api/conversations/${encodeURIComponent(id)}`, { title }),
  remove: (id: string) => call<void>("DELETE", `/api/conversations/${encodeURIComponent(id)}`),
  removeAll: () => call<void>("DELETE", "/api/conversations"),
  importConversation: (body: ImportBody) => call<{ id: string }>("POST", "/api/conversations/import", body),
};

import { call } from "./http";

export type LinkState = "live" | "expired" | "revoked";

export interface DemoLink {
  id: string;
  url: string;
  title: string;
  scope: "conversation" | "answer";
  state: LinkState;
  conversation_id: string | null;
  created_at: string;
  published_at: string;
  expires_at: string | null;
  views: number;
  allow_embed: boolean;
  owner_name: string;
}

export interface NewLink {
  conversation_id: string;
  /** The answer to end with; the newest where it is left out. */
  message_id?: string;
  scope?: DemoLink["scope"];
  title?: string;
  /** null: never */
  expires_in_days?: number | null;
  allow_embed?: boolean;
  owner_name?: string;
}

const one = (id: string): string => `/api/links/${encodeURIComponent(id)}`;

/** Demo links of this user or browser (docs/architecture.md, "Demo links"). Every call may throw an ApiError. */
export const links = {
  list: () => call<{ items: DemoLink[] }>("GET", "/api/links").then((page) => page.items),
  create: (body: NewLink) => call<DemoLink>("POST", "/api/links", body),
  update: (id: string, changes: Partial<Pick<NewLink, "title" | "expires_in_days" | "allow_embed" | "owner_name">>) => call<DemoLink>("PATCH", one(id), changes),
  /** Puts a new snapshot of the chat under the same address. */
  publish: (id: string, messageId?: string) => call<DemoLink>("POST", `${one(id)}/publish`, { message_id: messageId ?? null }),
  revoke: (id: string) => call<DemoLink>("POST", `${one(id)}/revoke`),
  remove: (id: string) => call<void>("DELETE", one(id)),
  fork: (token: string) => call<{ conversation_id: string }>("POST", `/api/links/fork/${encodeURIComponent(token)}`),
};

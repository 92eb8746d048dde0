import { call } from "./http";

export interface Percentiles {
  p50: number | null;
  p95: number | null;
  p99: number | null;
}

export interface Summary {
  start: string;
  end: string;
  requests: number;
  stopped: number;
  interrupted: number;
  failed: number;
  completion_tokens: number;
  before: { requests: number; completion_tokens: number };
  users: number;
  visitors: number;
  queue_ms: Percentiles;
  ttft_ms: Percentiles;
  rate: Percentiles;
  /** Of the one model shown, on its present engine. */
  read_bound: number | null;
  /** Null where a filter is set. */
  peak_waiting: number | null;
  links: number;
  views: number;
}

export interface Point {
  start: string;
  requests: number;
  done: number;
  stopped: number;
  interrupted: number;
  failed: number;
  prompt_tokens: number;
  completion_tokens: number;
  queue_ms: Percentiles;
  ttft_ms: Percentiles;
  rate: Percentiles;
}

export interface PeoplePoint {
  start: string;
  people: number;
  views: number;
}

export interface Bar {
  from: number;
  to: number;
  count: number;
}

export interface UseRow {
  id: string;
  name: string;
  requests: number;
  stopped: number;
  interrupted: number;
  failed: number;
  prompt_tokens: number;
  completion_tokens: number;
  /** Of models and engines. */
  rate_p50?: number | null;
  ttft_p50?: number | null;
}

export interface ErrorRow {
  name: string;
  kind: "error" | "stop" | "refused";
  requests: number;
}

export interface EngineRow {
  worker: string;
  host: string;
  slot: number;
  model: string;
  device: string | null;
  gpus: number;
  state: "loading" | "ready" | "busy" | "failed";
  draining: boolean;
  fraction: number;
  detail: string;
  generation: string | null;
  memory: { used: number; total: number } | null;
  /** False: its worker has stopped reporting. */
  alive: boolean;
  heartbeat_s: number;
  rate?: number | null;
  prefill?: [number, number] | null;
}

export interface Choices {
  models: string[];
  users: { id: string; name: string }[];
}

/** Usage figures for staff (docs/stats.md). `query` is the filter as URL parameters. */
export const stats = {
  part: <T>(part: string, query: URLSearchParams) => call<T>("GET", `/api/stats/${part}?${query}`),
  csv: (part: string, query: URLSearchParams) => `/api/stats/${part}?${query}&format=csv`,
  workers: () => call<{ waiting: number | null; engines: EngineRow[] }>("GET", "/api/stats/workers"),
  choices: () => call<Choices>("GET", "/api/stats/choices"),
  engine: (command: "drain" | "resume" | "restart", worker: string, slot: number) => call<void>("POST", `/api/stats/engines/${command}`, { worker, slot }),
  cancel: (generation: string) => call<void>("POST", `/api/stats/generations/${encodeURIComponent(generation)}/cancel`),
  block: (user: string) => call<void>("POST", `/api/stats/users/${encodeURIComponent(user)}/block`),
  revokeKey: (key: string) => call<void>("POST", `/api/stats/keys/${encodeURIComponent(key)}/revoke`),
  revokeLink: (link: string) => call<void>("POST", `/api/stats/links/${encodeURIComponent(link)}/revoke`),
};

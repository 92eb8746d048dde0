/** Wire types of protocol v1 and of the JSON API (docs/architecture.md). */

/** Null: not known before an engine has loaded the model. */
export interface ModelCard {
  name: string;
  title: string;
  context_tokens: number | null;
  parameters: number | null;
  precision: string | null;
  device: string | null;
  gpus: number;
  backend: string | null;
  bytes_per_token: number | null;
  bound_tokens_per_s: number | null;
  datasheet_bytes_per_s: number | null;
  measured_bytes_per_s: number | null;
  ready: boolean;
  /** Engines that can answer with it, each one request at a time. */
  engines: number;
  driver?: string | null;
}

export interface Params {
  model: string;
  temperature: number;
  top_p: number;
  top_k: number;
  min_p: number;
  max_tokens: number;
  seed: number | null;
  stop: string[];
}

export interface Boot {
  user: { name: string; staff: boolean } | null;
  anonymous: boolean;
  models: ModelCard[];
  default_model: string;
  limits: Record<string, number | null>;
  socket_path: string;
  conversation_id: string | null;
  /** What a page that led here has to say, such as that a confirmation was sent. */
  notices: string[];
}

export interface PromptMessage {
  role: "system" | "user" | "assistant";
  content: string;
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
}

export interface Timings {
  queue_ms: number | null;
  ttft_ms: number | null;
  total_ms: number | null;
  decode_tokens_per_s: number | null;
}

export type FinishReason = "stop" | "length" | "cancelled" | "interrupted";

export interface GenerateFrame {
  type: "generate";
  request_id: string;
  conversation_id?: string;
  parent_id?: string;
  user_message_id?: string;
  messages: PromptMessage[];
  params: Partial<Params>;
}

export type ClientFrame =
  | GenerateFrame
  | { type: "stop"; generation_id: string }
  | { type: "resume"; generation_id: string; last_event_id: string }
  | { type: "ack"; generation_id: string; event_id: string };

interface Base {
  generation_id: string;
}
export interface AcceptedFrame extends Base {
  type: "accepted";
  request_id: string;
  conversation_id: string;
  user_message_id: string;
  assistant_message_id: string;
}
export interface QueuedFrame extends Base {
  type: "queued";
  position: number;
}
export interface LoadingFrame extends Base {
  type: "loading";
  fraction: number;
  detail: string;
}
export interface StartedFrame extends Base {
  type: "started";
  event_id: string;
  prompt_tokens: number;
  queue_ms: number;
}
export interface PrefillFrame extends Base {
  type: "prefill";
  event_id: string;
  done: number;
  total: number;
}
/** A batch of the engine: [tokens, elapsed_ms, characters (code points)]. */
export type Point = [number, number, number];
export interface DeltaFrame extends Base {
  type: "delta";
  event_id: string;
  text: string;
  tokens: number;
  elapsed_ms: number;
  /** Inside a merged catch-up delta: one of each batch it merges. */
  points?: Point[] | null;
}
export interface DoneFrame extends Base {
  type: "done";
  event_id: string;
  finish_reason: FinishReason;
  usage: Usage;
  timings: Timings;
}
/** `details` holds the numbers of `message`, so that it can be said in another language. */
export interface ErrorBody {
  code: string;
  message: string;
  details?: Record<string, string | number> | null;
}

export interface ErrorFrame extends ErrorBody {
  type: "error";
  generation_id: string | null;
  request_id?: string | null;
  event_id?: string | null;
}

export type GenerationFrame = QueuedFrame | LoadingFrame | StartedFrame | PrefillFrame | DeltaFrame | DoneFrame | (ErrorFrame & Base);
export type ServerFrame = AcceptedFrame | GenerationFrame | ErrorFrame;

export type StoredState = "queued" | "running" | "done" | "stopped" | "interrupted" | "failed";

export interface StoredGeneration {
  id: string;
  state: StoredState;
  model: string;
  params: Partial<Params>;
  usage: Usage | null;
  timings: Timings | null;
  error: ErrorBody | null;
  finish_reason: FinishReason | "";
  text: string;
  last_event_id: string | null;
  /** [tokens, elapsed_ms] of each batch. */
  points: Point[];
}

export interface StoredMessage {
  id: string;
  parent_id: string | null;
  role: "system" | "user" | "assistant";
  content: string;
  created_at: string;
  generation: StoredGeneration | null;
}

export interface StoredConversation {
  id: string;
  title: string;
  messages: StoredMessage[];
}

export interface ConversationRow {
  id: string;
  title: string;
  updated_at: string;
  decode_tokens_per_s: number | null;
  state: StoredState | null;
}

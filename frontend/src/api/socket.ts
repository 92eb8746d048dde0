import { ApiError, megabytes, toJson } from "./http";
import type { AcceptedFrame, ClientFrame, ErrorFrame, GenerateFrame, GenerationFrame, ServerFrame } from "./types";

export type Link = "connected" | "reconnecting" | "offline";

/** What a running generation needs from the socket: its frames, and where to resume. */
export interface Subscriber {
  readonly id: string;
  readonly lastEventId: string;
  readonly ended: boolean;
  apply(frame: GenerationFrame): void;
  connectionLost(): void;
}

export interface SocketEvents {
  link(state: Link, retryAtMs: number | null): void;
  accepted(frame: AcceptedFrame): void;
  refused(frame: ErrorFrame): void;
  /** The connection broke between a request and the answer to it: the server may or may not have it. */
  unanswered(frame: GenerateFrame): void;
}

const FIRST_RETRY_MS = 250;
const LONGEST_RETRY_MS = 10_000;
const SLEEP_MS = 20_000;
const ACK_MS = 100;

/** The only WebSocket of a page: reconnects with jitter, resumes every live generation from its last event. */
export class PlaygroundSocket {
  private socket: WebSocket | null = null;
  private attempts = 0;
  private retry = 0;
  private closed = false;
  private hiddenAt = 0;
  private state: Link = "reconnecting";
  private readonly live = new Map<string, Subscriber>();
  private readonly pending = new Map<string, GenerateFrame>();
  private readonly acked = new Map<string, { id: string; at: number }>();

  constructor(
    private readonly path: string,
    private readonly events: SocketEvents,
    private readonly limitBytes: number,
  ) {
    addEventListener("online", () => this.retryNow());
    addEventListener("offline", () => this.drop());
    document.addEventListener("visibilitychange", () => this.visibility());
    addEventListener("pageshow", (event) => {
      if ((event as PageTransitionEvent).persisted) this.drop();
    });
  }

  connect(): void {
    clearTimeout(this.retry);
    this.retry = 0;
    if (this.closed || this.socket) return;
    const url = new URL(this.path, location.href);
    url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(url);
    this.socket = socket;
    socket.onopen = () => this.opened(socket);
    socket.onmessage = (event) => {
      if (this.socket === socket) this.receive(JSON.parse(event.data as string) as ServerFrame);
    };
    socket.onclose = () => this.lost(socket);
  }

  retryNow(): void {
    if (!this.socket) this.connect();
  }

  get connected(): boolean {
    return this.socket?.readyState === WebSocket.OPEN;
  }

  /** Sends a request. Throws ApiError when there is no connection, or it is larger than the server takes: then nothing was sent. */
  generate(frame: GenerateFrame): void {
    if (!this.connected) throw new ApiError(0, "offline", "No connection.");
    const text = toJson(frame);
    const bytes = new Blob([text]).size;
    if (bytes > this.limitBytes) throw new ApiError(0, "message_too_large", "This message is too large.", megabytes(bytes, this.limitBytes));
    this.pending.set(frame.request_id, frame);
    this.socket?.send(text);
  }

  stop(generationId: string): boolean {
    return this.send({ type: "stop", generation_id: generationId });
  }

  /** Registers a generation that this page follows from the start (just accepted). */
  follow(subscriber: Subscriber): void {
    this.live.set(subscriber.id, subscriber);
  }

  /** Follows a generation that already runs elsewhere: asks for everything after its last event. */
  resume(subscriber: Subscriber): void {
    this.live.set(subscriber.id, subscriber);
    this.send({ type: "resume", generation_id: subscriber.id, last_event_id: subscriber.lastEventId });
  }

  /** Tells the server what has been drawn, at most ten times a second. */
  ack(generationId: string, eventId: string): void {
    const now = performance.now();
    const last = this.acked.get(generationId);
    if (last && (last.id === eventId || now - last.at < ACK_MS)) return;
    this.acked.set(generationId, { id: eventId, at: now });
    this.send({ type: "ack", generation_id: generationId, event_id: eventId });
  }

  private send(frame: ClientFrame): boolean {
    if (!this.connected) return false;
    this.socket?.send(toJson(frame));
    return true;
  }

  private opened(socket: WebSocket): void {
    if (this.socket !== socket) return;
    this.attempts = 0;
    this.setLink("connected", null);
    for (const subscriber of this.live.values()) {
      if (!subscriber.ended) this.send({ type: "resume", generation_id: subscriber.id, last_event_id: subscriber.lastEventId });
    }
  }

  private receive(frame: ServerFrame): void {
    if (frame.type === "accepted") {
      this.pending.delete(frame.request_id);
      this.events.accepted(frame);
      return;
    }
    const subscriber = frame.generation_id ? this.live.get(frame.generation_id) : undefined;
    if (frame.type === "error" && !subscriber) {
      if (frame.request_id) this.pending.delete(frame.request_id);
      this.events.refused(frame);
      return;
    }
    subscriber?.apply(frame as GenerationFrame);
    if (subscriber?.ended) {
      this.live.delete(subscriber.id);
      this.acked.delete(subscriber.id);
    }
  }

  private lost(socket: WebSocket): void {
    if (this.socket !== socket) return;
    this.socket = null;
    for (const subscriber of this.live.values()) subscriber.connectionLost();
    for (const frame of this.pending.values()) this.events.unanswered(frame);
    this.pending.clear();
    if (this.closed) return;
    if (!navigator.onLine) {
      this.setLink("offline", null);
      return;
    }
    const ceiling = Math.min(LONGEST_RETRY_MS, FIRST_RETRY_MS * 2 ** this.attempts++);
    const wait = ceiling / 2 + Math.random() * (ceiling / 2);
    this.setLink("reconnecting", performance.now() + wait);
    this.retry = window.setTimeout(() => this.connect(), wait);
  }

  /** Forgets the present connection at once, as if it had broken. */
  private drop(): void {
    const socket = this.socket;
    if (!socket) return;
    this.lost(socket);
    socket.close();
  }

  /** A tab that slept may hold a connection that died unseen: after a while away, open a fresh one. */
  private visibility(): void {
    if (document.hidden) {
      this.hiddenAt = performance.now();
      return;
    }
    if (!this.socket) this.connect();
    else if (this.live.size > 0 && performance.now() - this.hiddenAt > SLEEP_MS) {
      this.drop();
      this.connect();
    }
  }

  private setLink(state: Link, retryAt: number | null): void {
    if (state === this.state && state === "connected") return;
    this.state = state;
    this.events.link(state, retryAt);
  }
}

import asmUrl from "pyodide/pyodide.asm.mjs?url";
import wasmUrl from "pyodide/pyodide.asm.wasm?url";
import lockUrl from "pyodide/pyodide-lock.json?url";
import loaderUrl from "pyodide/pyodide.mjs?url";
import stdlibUrl from "pyodide/python_stdlib.zip?url";
import { FocusGuard } from "./focus";
import { hostGuest, inspect, outlet, pageGuest, pythonGuest, scriptGuest } from "./guest";
import { HtmlFeed } from "./html-feed";
import { MOST_CHARACTERS, MOST_LINES, TIME_LIMIT_MS, type GuestMessage, type OutputItem, type RunError, type SourceFile } from "./protocol";
import pythonRunner from "./runner.py?raw";

export type EndReason = "done" | "stopped" | "limit" | "hung" | "flood" | "failed";

/** What a run tells its console. `end` comes exactly once and last. */
export interface RunListener {
  loading(doneBytes: number, totalBytes: number): void;
  started(): void;
  output(items: OutputItem[], dropped: number): void;
  error(error: RunError): void;
  end(reason: EndReason): void;
}

export interface Run {
  stop(): void;
}

const FRAME_START_MS = 10_000;
const PING_MS = 1000;
const HUNG_MS = 3000;
const HALT_MS = 500;
const MOST_MESSAGES_A_SECOND = 2000;

/** A sandboxed frame of its own origin, and the private channel to the script in it. */
class Frame {
  readonly element = document.createElement("iframe");
  onMessage: (message: GuestMessage) => void = () => {};
  onLost: (reason: EndReason) => void = () => {};
  /** Set once the script in the frame has answered. */
  private port: MessagePort | null = null;
  private opened: MessagePort | null = null;
  private timer = 0;
  private waiting: { type: string }[] = [];
  private lastPong = 0;
  private lastPing = 0;
  private messages = 0;
  private closed = false;
  private readonly stray = (event: MessageEvent): void => {
    if (event.source === this.element.contentWindow) this.count();
  };

  constructor(parent: HTMLElement, title: string, script: string) {
    this.element.setAttribute("sandbox", "allow-scripts");
    this.element.src = "/sandbox/";
    this.element.title = title;
    this.element.addEventListener("load", () => this.connect(script), { once: true });
    window.addEventListener("message", this.stray);
    this.timer = window.setTimeout(() => this.lose("failed"), FRAME_START_MS);
    parent.append(this.element);
  }

  send(message: { type: string; [key: string]: unknown }): void {
    if (this.port) this.port.postMessage(message);
    else this.waiting.push(message);
  }

  close(): void {
    if (this.closed) return;
    this.closed = true;
    clearInterval(this.timer);
    window.removeEventListener("message", this.stray);
    this.port?.close();
    this.element.remove();
  }

  private connect(script: string): void {
    const channel = new MessageChannel();
    channel.port1.onmessage = ({ data }: MessageEvent<GuestMessage>) => this.received(data);
    this.opened = channel.port1;
    this.element.contentWindow?.postMessage(script, "*", [channel.port2]);
  }

  private received(message: GuestMessage): void {
    if (this.closed || typeof message !== "object" || message === null) return;
    this.lastPong = performance.now();
    if (message.type === "ready" && !this.port) {
      this.port = this.opened;
      clearTimeout(this.timer);
      this.lastPing = this.lastPong;
      this.timer = window.setInterval(() => this.watch(), PING_MS);
      for (const waiting of this.waiting.splice(0)) this.port!.postMessage(waiting);
    } else if (message.type !== "pong") this.count();
    if (!this.closed) this.onMessage(message);
  }

  /** A frame that answers nothing for three seconds is removed; a late timer of our own (a page asleep) is no evidence. */
  private watch(): void {
    const now = performance.now();
    const onTime = now - this.lastPing < 2 * PING_MS;
    this.lastPing = now;
    this.messages = 0;
    if (!onTime || document.hidden) this.lastPong = now;
    if (now - this.lastPong > HUNG_MS) return this.lose("hung");
    this.port?.postMessage({ type: "ping" });
  }

  private count(): void {
    if (++this.messages > MOST_MESSAGES_A_SECOND) this.lose("flood");
  }

  private lose(reason: EndReason): void {
    if (this.closed) return;
    this.close();
    this.onLost(reason);
  }
}

const call = (guest: (...values: never[]) => void, ...values: string[]): string => `(${guest.toString()})(${values.join(",")});`;
const TAKE_PORT = "(()=>{const p=window.sandboxPort;delete window.sandboxPort;return p})()";
/** As text, because build tools rewrite an `import()` in code. */
const LOAD = "(url)=>import(url)";
const limits = [String(MOST_LINES), String(MOST_CHARACTERS)];

/** Reads a file with progress. */
async function read(url: string, onBytes: (bytes: number) => void): Promise<ArrayBuffer> {
  const response = await fetch(url);
  if (!response.ok || !response.body) throw new Error(`${url}: ${response.status}`);
  const parts: Uint8Array<ArrayBuffer>[] = [];
  const reader = response.body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    onBytes(value.byteLength);
  }
  return new Blob(parts).arrayBuffer();
}

/** Size of the interpreter's files, for the progress line. */
const PYTHON_BYTES = 13_400_000;

/** Hosts the workers for Python and plain JavaScript; the interpreter is fetched at the first Python run and then stays. */
export class WorkerHost {
  private frame: Frame | null = null;
  private current: RunListener | null = null;
  private run = 0;
  private python: "none" | "loading" | "ready" = "none";
  private waiting: (() => void) | null = null;
  private limit = 0;
  private ending: EndReason | null = null;

  constructor(private readonly holder: HTMLElement) {}

  runPython(files: SourceFile[], name: string, inputMessage: string, listener: RunListener): Run {
    const run = this.take(listener);
    this.waiting = () => this.frame?.send({ type: "python", run, name, files, inputMessage });
    if (this.python === "none") void this.loadPython();
    else if (this.python === "ready") this.begin();
    return { stop: () => this.halt(listener, "stopped") };
  }

  runScript(code: string, listener: RunListener): Run {
    const run = this.take(listener);
    this.frame!.send({ type: "script", run, code });
    return { stop: () => this.halt(listener, "stopped") };
  }

  private begin(): void {
    this.waiting?.();
    this.waiting = null;
  }

  private take(listener: RunListener): number {
    this.finish(this.current, "stopped");
    this.current = listener;
    this.frame ??= this.openFrame();
    return ++this.run;
  }

  private openFrame(): Frame {
    const python = call(pythonGuest, LOAD, outlet.toString(), ...limits);
    const script = call(scriptGuest, LOAD, outlet.toString(), inspect.toString(), ...limits);
    const frame = new Frame(this.holder, "Runner", call(hostGuest, TAKE_PORT, JSON.stringify(python), JSON.stringify(script)));
    frame.element.className = "wb-runner";
    frame.onMessage = (message) => this.received(message);
    frame.onLost = (reason) => {
      this.frame = null;
      this.python = "none";
      this.finish(this.current, reason);
    };
    return frame;
  }

  private async loadPython(): Promise<void> {
    this.python = "loading";
    let bytes = 0;
    const progress = (more: number): void => {
      bytes += more;
      this.current?.loading(Math.min(bytes, PYTHON_BYTES), PYTHON_BYTES);
    };
    const text = async (url: string): Promise<string> => new TextDecoder().decode(await read(url, progress));
    try {
      const [wasm, stdlib, loader, asm, lock] = await Promise.all([read(wasmUrl, progress), read(stdlibUrl, progress), text(loaderUrl), text(asmUrl), text(lockUrl)]);
      this.frame?.send({ type: "assets", wasm, stdlib, loader, asm, lock: emptyLock(lock), runner: pythonRunner });
    } catch (error) {
      this.python = "none";
      const message = String((error as Error).message);
      this.current?.error({ message, line: null, details: message });
      this.finish(this.current, "failed");
    }
  }

  private received(message: GuestMessage): void {
    const listener = this.current;
    if (message.type === "python") {
      this.python = "ready";
      this.begin();
    } else if (!listener || !("run" in message) || message.run !== this.run) return;
    else if (message.type === "stopped") this.finish(listener, this.ending ?? "stopped");
    else if (message.type === "started") {
      this.limit = window.setTimeout(() => this.halt(listener, "limit"), TIME_LIMIT_MS);
      listener.started();
    } else if (message.type === "error" && message.fatal) {
      listener.error(cleanError(message.error));
      this.finish(listener, "failed");
    } else if (message.type === "done") this.finish(listener, "done");
    else forward(message, listener);
  }

  private finish(listener: RunListener | null, reason: EndReason): void {
    if (!listener || listener !== this.current) return;
    clearTimeout(this.limit);
    this.current = null;
    this.waiting = null;
    this.ending = null;
    if (reason !== "done") this.frame?.send({ type: "stop" });
    listener.end(reason);
  }

  /** Ends the worker; the run is over when the host has handed in the last output, at most a moment later. */
  private halt(listener: RunListener | null, reason: EndReason): void {
    if (!listener || listener !== this.current || this.ending) return;
    clearTimeout(this.limit);
    this.ending = reason;
    this.waiting = null;
    this.frame?.send({ type: "stop", run: this.run });
    this.limit = window.setTimeout(() => this.finish(listener, reason), HALT_MS);
  }
}

/** The interpreter needs the list of packages only for its version facts: no package is ever loaded. */
function emptyLock(lock: string): string {
  return JSON.stringify({ ...(JSON.parse(lock) as object), packages: {} });
}

function cleanError(error: RunError): RunError {
  const line = Number(error?.line);
  return {
    message: plainMessage(error?.message).slice(0, 2000),
    line: Number.isInteger(line) && line > 0 ? line : null,
    details: plainMessage(error?.details).slice(0, 20_000),
  };
}

/** A syntax error names the call with which the code was loaded: that says nothing to the reader. */
function plainMessage(text: unknown): string {
  return String(text ?? "").replace(/Failed to execute '\w+' on '\w+': /, "");
}

function forward(message: GuestMessage, listener: RunListener | null): void {
  if (message.type === "output" && Array.isArray(message.items)) {
    const items = message.items.map(([kind, text]): OutputItem => [kind, String(text)]);
    listener?.output(items, Number(message.dropped) || 0);
  } else if (message.type === "error") listener?.error(cleanError(message.error));
}

/** A page in a frame. Text may come in pieces (`write`), as a parser takes it; nothing is drawn twice. */
export class Preview implements Run {
  private readonly frame: Frame;
  private readonly focus: FocusGuard;
  private readonly feed: HtmlFeed;
  private ended = false;
  private pending = "";
  private timer = 0;

  constructor(
    holder: HTMLElement,
    title: string,
    private readonly listener: RunListener,
    words: { loop: string; blocked: string },
    guard: (code: string) => string,
    files: SourceFile[],
  ) {
    this.feed = new HtmlFeed(guard, files);
    this.frame = new Frame(holder, title, call(pageGuest, TAKE_PORT, outlet.toString(), inspect.toString(), ...limits, JSON.stringify(words.loop), JSON.stringify(words.blocked)));
    this.frame.onMessage = (message) => {
      if (message.type === "ready") listener.started();
      else if (message.type === "pressed") this.focus.pressed();
      else if (message.type === "error") listener.error(place(message.error as RunError & { place?: string }));
      else forward(message, listener);
    };
    this.frame.onLost = (reason) => this.finish(reason);
    this.focus = new FocusGuard(this.frame.element);
    this.frame.send({ type: "open" });
  }

  /** Adds text; it is written at most ten times a second. */
  write(text: string): void {
    this.pending += text;
    this.timer ||= window.setTimeout(() => this.flush(), 100);
  }

  /** The text is whole: the document's load events fire. */
  close(): void {
    this.flush();
    const rest = this.feed.end();
    if (rest) this.frame.send({ type: "write", html: rest });
    this.frame.send({ type: "close" });
  }

  stop(): void {
    this.frame.close();
    this.finish("stopped");
  }

  private flush(): void {
    clearTimeout(this.timer);
    this.timer = 0;
    const ready = this.feed.push(this.pending);
    this.pending = "";
    if (ready && !this.ended) this.frame.send({ type: "write", html: ready });
  }

  private finish(reason: EndReason): void {
    if (this.ended) return;
    this.ended = true;
    clearTimeout(this.timer);
    this.focus.end();
    this.listener.end(reason);
  }
}

/** A page's script says in its `sourceURL` at which line of the file it began. */
function place(error: RunError & { place?: string }): RunError {
  const clean = cleanError(error);
  const start = /^line:(\d+)$/.exec(String(error?.place ?? ""));
  if (start && clean.line) clean.line += Number(start[1]) - 1;
  else clean.line = null;
  if (clean.line) clean.details = `${clean.message}\n    at line ${clean.line}`;
  return clean;
}

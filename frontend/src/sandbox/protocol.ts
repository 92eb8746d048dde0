/** Messages between the page and its sandbox frames. Everything from a frame is untrusted and checked where it arrives. */

export type OutputKind = "out" | "err" | "warn" | "info";
export type OutputItem = [OutputKind, string];

export interface RunError {
  /** "ZeroDivisionError: division by zero" */
  message: string;
  /** 1-based line in the file that was run, null when it is elsewhere. */
  line: number | null;
  /** What is sent to the model: the traceback or the message with its place. */
  details: string;
}

/** From a frame. Messages of a run in a worker carry its number, so that late ones of an ended run are known. */
export type GuestMessage = { run?: number } & (
  | { type: "ready" }
  | { type: "python" }
  | { type: "pong" }
  | { type: "started" }
  | { type: "pressed" }
  | { type: "output"; items: OutputItem[]; dropped: number }
  | { type: "error"; error: RunError; fatal: boolean }
  | { type: "done" }
  | { type: "stopped" }
);

export interface SourceFile {
  name: string;
  code: string;
}

/** Most lines and characters of one run that are kept; the rest is counted. */
export const MOST_LINES = 5000;
export const MOST_CHARACTERS = 1_000_000;
export const TIME_LIMIT_MS = 10_000;

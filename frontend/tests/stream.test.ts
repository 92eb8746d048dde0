import { beforeEach, describe, expect, it, vi } from "vitest";
import { PlaygroundSocket } from "../src/api/socket";
import { wordsOf } from "../src/i18n/errors";
import type { AcceptedFrame, GenerationFrame, StoredGeneration } from "../src/api/types";
import { roundTop, Samples, timeScaleMs } from "../src/instrument/rate";
import { Conversation, promptMessages, type Message } from "../src/store/conversation";
import { Generation, laterEvent } from "../src/store/generation";
import { parseField } from "../src/store/settings";

const delta = (id: string, text: string, tokens: number, ms: number): GenerationFrame => ({ type: "delta", generation_id: "g", event_id: id, text, tokens, elapsed_ms: ms });

describe("rates", () => {
  it("counts the last 250 ms of the engine's clock, whole, and the last second when slow", () => {
    const fast = new Samples();
    for (let i = 0; i <= 100; i++) fast.add(10, 20 + i * 10);
    expect(fast.live()).toEqual({ rate: 1000, windowMs: 250 });
    const slow = new Samples();
    for (let i = 0; i <= 50; i++) slow.add(1, 300 + i * 20);
    expect(slow.live()?.windowMs).toBe(1000);
    expect(slow.live()?.rate).toBeCloseTo(50);
  });

  it("measures since the first token while the run is young, and nothing from one batch", () => {
    const samples = new Samples();
    samples.add(5, 20);
    expect(samples.live()).toBeNull();
    samples.add(10, 30);
    expect(samples.live()?.rate).toBeCloseTo(1000);
  });

  it("gives one bucket per 20 ms that keeps its value once drawn", () => {
    const samples = new Samples();
    for (let i = 0; i <= 10; i++) samples.add(10, 20 + i * 10);
    const early = samples.buckets(20);
    for (let i = 11; i <= 30; i++) samples.add(3, 20 + i * 10);
    expect(samples.buckets(20).slice(0, early.length)).toEqual(early);
    expect(early.length).toBe(5);
  });

  it("scales by doubling and tops a bound of 1,015 with 1,200", () => {
    expect([100, 801, 1700].map(timeScaleMs)).toEqual([800, 1600, 3200]);
    expect([roundTop(1015), roundTop(46), roundTop(8120), roundTop(99)]).toEqual([1200, 60, 9000, 120]);
  });
});

describe("a generation", () => {
  it("gives each character of a stored text the engine's time, whatever its width", () => {
    const stored: StoredGeneration = {
      id: "g",
      state: "done",
      model: "m",
      params: {} as StoredGeneration["params"],
      usage: { prompt_tokens: 1, completion_tokens: 3 },
      timings: { queue_ms: 1, ttft_ms: 10, total_ms: 30, decode_tokens_per_s: 100 },
      error: null,
      finish_reason: "stop",
      text: "a🙂b数c?",
      last_event_id: "3-0",
      points: [[1, 10, 2], [1, 20, 2], [1, 30, 1]],
    };
    const pieces = Generation.fromStored(stored).pieces.map(({ text, engineMs, tokens }) => [text, engineMs, tokens]);
    expect(pieces).toEqual([["a🙂", 10, 1], ["b数", 20, 2], ["c", 30, 3], ["?", -1, 3]]);
  });

  it("orders event ids by their numbers", () => {
    expect(laterEvent("10-2", "9-11")).toBe(true);
    expect(laterEvent("9-11", "9-2")).toBe(true);
    expect(laterEvent("9-2", "9-2")).toBe(false);
  });

  it("applies a replayed frame once and walks through its states", () => {
    const run = new Generation("g", "m", 10);
    run.apply({ type: "queued", generation_id: "g", position: 2 });
    expect(run.state).toBe("queued");
    run.apply({ type: "started", generation_id: "g", event_id: "1-0", prompt_tokens: 5, queue_ms: 3 });
    run.apply(delta("2-0", "a", 1, 20));
    run.apply(delta("3-0", "b", 1, 30));
    run.connectionLost();
    expect(run.state).toBe("reconnecting");
    run.apply(delta("2-0", "a", 1, 20));
    run.apply({ ...delta("4-0", "cd", 2, 50), points: [[1, 40, 1], [1, 50, 1]] });
    expect([run.state, run.text, run.tokens, run.lastEventId]).toEqual(["streaming", "abcd", 4, "4-0"]);
    run.apply({ type: "done", generation_id: "g", event_id: "5-0", finish_reason: "cancelled", usage: { prompt_tokens: 5, completion_tokens: 4 }, timings: { queue_ms: 3, ttft_ms: 20, total_ms: 50, decode_tokens_per_s: 100 } });
    expect([run.state, run.ended]).toEqual(["stopped", true]);
    run.apply(delta("6-0", "late", 1, 60));
    expect(run.text).toBe("abcd");
  });
});

class FakeSocket {
  static all: FakeSocket[] = [];
  static OPEN = 1;
  readyState = 1;
  sent: Record<string, unknown>[] = [];
  onopen: () => void = () => {};
  onclose: () => void = () => {};
  onmessage: (event: { data: string }) => void = () => {};
  constructor() {
    FakeSocket.all.push(this);
  }
  send(text: string): void {
    this.sent.push(JSON.parse(text) as Record<string, unknown>);
  }
  close(): void {
    this.readyState = 3;
  }
}

describe("the socket", () => {
  beforeEach(() => {
    FakeSocket.all = [];
    vi.stubGlobal("WebSocket", FakeSocket);
    vi.useFakeTimers();
  });

  it("reconnects with jitter and resumes each live run from its last event", () => {
    const links: string[] = [];
    const socket = new PlaygroundSocket("/ws/", { link: (state) => links.push(state), accepted: (_: AcceptedFrame) => {}, refused: () => {}, unanswered: () => {} }, Infinity);
    socket.connect();
    const first = FakeSocket.all[0] as FakeSocket;
    first.onopen();
    const run = new Generation("g", "m", null);
    socket.follow(run);
    first.onmessage({ data: JSON.stringify(delta("7-1", "x", 1, 10)) });
    first.readyState = 3;
    first.onclose();
    expect(run.state).toBe("reconnecting");
    vi.advanceTimersByTime(260);
    const second = FakeSocket.all[1] as FakeSocket;
    second.onopen();
    expect(second.sent).toEqual([{ type: "resume", generation_id: "g", last_event_id: "7-1" }]);
    expect(links).toEqual(["connected", "reconnecting", "connected"]);
  });

  it("gives back a request whose answer never came", () => {
    const back: string[] = [];
    const socket = new PlaygroundSocket("/ws/", { link: () => {}, accepted: () => {}, refused: () => {}, unanswered: (frame) => back.push(frame.request_id) }, 200);
    socket.connect();
    const first = FakeSocket.all[0] as FakeSocket;
    first.onopen();
    socket.generate({ type: "generate", request_id: "r1", messages: [], params: {} });
    first.readyState = 3;
    first.onclose();
    expect(back).toEqual(["r1"]);
    expect(() => socket.generate({ type: "generate", request_id: "r2", messages: [], params: {} })).toThrow(expect.objectContaining({ code: "offline" }));
  });

  it("sends nothing that the server would refuse unread for its size, and says how large it is", () => {
    const socket = new PlaygroundSocket("/ws/", { link: () => {}, accepted: () => {}, refused: () => {}, unanswered: () => {} }, 1_000_000);
    socket.connect();
    const wire = FakeSocket.all[0] as FakeSocket;
    wire.onopen();
    const ask = (content: string) => () => socket.generate({ type: "generate", request_id: "r", messages: [{ role: "user", content }], params: {} });
    const writes = vi.spyOn(JSON, "stringify");
    ask("x\n".repeat(333_000))();
    expect(ask("x\n".repeat(334_000)), "a line's end takes two bytes on the wire").toThrow(expect.objectContaining({ code: "message_too_large" }));
    try {
      ask("x".repeat(1_000_000))();
    } catch (error) {
      expect(wordsOf(error)).toBe("This message is 1.1 MB; the limit is 1 MB.");
    }
    expect(wire.sent.length).toBe(1);
    expect(writes, "a request is written once").toHaveBeenCalledTimes(3);
    writes.mockRestore();
    expect.assertions(4);
  });
});

describe("a conversation", () => {
  const message = (id: string, parentId: string | null, role: Message["role"], content = id): Message => ({ id, parentId, role, content, run: null });

  it("is a tree with one shown path, and keeps it when a message gets its stored id", () => {
    const tree = new Conversation("c", "");
    for (const one of [message("u1", null, "user"), message("a1", "u1", "assistant"), message("u2", "a1", "user"), message("a2", "u2", "assistant")]) tree.add(one);
    const edited = message("new", "a1", "user");
    tree.add(edited);
    expect(tree.path().map((one) => one.id)).toEqual(["u1", "a1", "new"]);
    expect(tree.siblings(edited).length).toBe(2);
    tree.add(message("a3", "new", "assistant"));
    tree.rename(edited, "u3");
    expect(tree.path().map((one) => one.id)).toEqual(["u1", "a1", "u3", "a3"]);
    tree.choose(tree.messages.get("u2") as Message);
    expect(tree.path().map((one) => one.id)).toEqual(["u1", "a1", "u2", "a2"]);
    expect([tree.last?.id, tree.findLast((one) => one.role === "user")?.id]).toEqual(["a2", "u2"]);
    const refused = message("u4", "a2", "user");
    tree.add(refused);
    expect(tree.last).toBe(refused);
    tree.remove(refused);
    expect(tree.pathTo(tree.last as Message)).toEqual(tree.path());
    expect(promptMessages(" Be short. ", tree.path()).map((one) => one.role)).toEqual(["system", "user", "assistant", "user", "assistant"]);
  });
});

describe("parameters", () => {
  it("takes a number within its range, with a comma too", () => {
    expect([parseField("top_p", "0,9"), parseField("top_p", "1.2"), parseField("top_k", "4.5"), parseField("temperature", ""), parseField("temperature", "0")]).toEqual([0.9, null, null, null, 0]);
  });
});

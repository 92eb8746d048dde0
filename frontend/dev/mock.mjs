/**
 * A stand-in for the server that speaks protocol v1 from memory: `node dev/mock.mjs [port]`. The prompt steers it, as in
 * `rate=5000 tokens=8000 kind=python|markdown|text queue=3 prefill=2048 loading=1 fail=1 interrupt=1 drop=200 gpu=1`
 * (drop: the socket breaks after that many tokens).
 */
import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { dirname, extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";
import { WebSocketServer } from "ws";

const root = join(dirname(fileURLToPath(import.meta.url)), "../..");
const port = Number(process.argv[2] ?? 8123);
const cpu = {
  name: "smollm2-135m-instruct", title: "SmolLM2 135M", context_tokens: 2048, parameters: 134515008, precision: "bfloat16", device: "CPU, 2 cores", gpus: 0,
  backend: "torch", bytes_per_token: 269e6, bound_tokens_per_s: null, datasheet_bytes_per_s: null, measured_bytes_per_s: null, ready: true,
};
const gpu = {
  name: "laneformer-2b", title: "Laneformer 2B", context_tokens: 4096, parameters: 2.2e9, precision: "float16", device: "H200", gpus: 1, backend: "monokernel",
  bytes_per_token: 4.443e9, bound_tokens_per_s: 1015, datasheet_bytes_per_s: 4.8e12, measured_bytes_per_s: 4.51e12, ready: true, driver: "570.86",
};
const conversations = new Map();
const runs = new Map();

const PYTHON = `def walk_back(came_from: dict, start: tuple, goal: tuple) -> list:
    """Follow the path from goal to start, then turn it round."""
    path = [goal]
    while path[-1] != start:
        path.append(came_from[path[-1]])  # one step back
    return path[::-1]


class Grid:
    def __init__(self, cells: list[list[int]]) -> None:
        self.cells = cells
        self.size = (len(cells), len(cells[0]))

`;
const MARKDOWN = `## A heading with \`code\`

Some **bold words**, *others*, a [link](https://example.org/page) and \`inline code\` in a paragraph that goes on for a while so that it wraps.

- first point, with a \`name\`
- second point
  - nested **strong** point
1. numbered
2. again

| name | value |
|------|-------|
| a    | 1     |
| b    | 2     |

> A quotation of one line.

\`\`\`python
${PYTHON}\`\`\`

שלום עולם, and an emoji 👩‍🚀 at the end.

`;

function script(prompt) {
  const option = (name, fallback) => {
    const found = new RegExp(`${name}=(\\w+)`).exec(prompt);
    return found ? (Number.isNaN(Number(found[1])) ? found[1] : Number(found[1])) : fallback;
  };
  const tokens = option("tokens", 200);
  const kind = option("kind", "demo");
  const unit = kind === "markdown" ? MARKDOWN : kind === "text" ? "A line of prose that says little, and then goes on. " : PYTHON;
  let text = unit.repeat(Math.ceil((tokens * 4) / unit.length) + 1).slice(0, tokens * 4);
  if (kind === "python") text = "Here it is:\n\n```python shortest_path.py\n" + text.slice(0, -60) + "\n```\n";
  if (kind === "demo") text = `Breadth-first search no longer works once steps differ in cost, so this is Dijkstra with a heap. Two points:\n\n- the heap may hold old, dearer entries;\n- the path is rebuilt from \`came_from\`.\n\n\`\`\`python shortest_path.py\n${text.slice(0, Math.max(100, tokens * 4 - 320))}\n\`\`\`\n\nThat is all.`;
  const pieces = [];
  for (let i = 0; i < tokens; i++) pieces.push(text.slice(Math.floor((i * text.length) / tokens), Math.floor(((i + 1) * text.length) / tokens)));
  return { rate: option("rate", 950), pieces, queue: option("queue", 0), prefill: option("prefill", 45), loading: option("loading", 0), fail: option("fail", 0), interrupt: option("interrupt", 0), drop: option("drop", 0) };
}

function emit(run, frame) {
  frame.generation_id = run.id;
  if (!["queued", "loading"].includes(frame.type)) frame.event_id = `${Date.now()}-${run.events.length}`;
  run.events.push(frame);
  for (const socket of run.viewers) socket.send(JSON.stringify(frame));
}

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

async function play(run, plan) {
  for (let p = plan.queue; p > 0; p--) {
    emit(run, { type: "queued", position: p });
    await sleep(1000);
  }
  for (let f = 0; plan.loading && f < 1; f += 0.1) {
    emit(run, { type: "loading", fraction: f, detail: `Reading Laneformer 2B, ${(4.6 * f).toFixed(1)} of 4.6 GB. Once only.` });
    await sleep(500);
  }
  run.state = "running";
  emit(run, { type: "started", prompt_tokens: plan.prefill, queue_ms: plan.queue * 1000 + 3 });
  for (let done = 512; done < plan.prefill; done += 512) {
    emit(run, { type: "prefill", done, total: plan.prefill });
    await sleep(400);
  }
  if (plan.fail) {
    run.state = "failed";
    run.error = { code: "invalid_numbers", message: "The engine stopped on invalid numbers." };
    emit(run, { type: "error", ...run.error });
    return;
  }
  const start = performance.now();
  const ttft = 20;
  let sent = 0;
  while (sent < plan.pieces.length && !run.stop) {
    await sleep(10);
    const elapsed = performance.now() - start;
    const due = Math.min(plan.pieces.length, 1 + Math.floor(((elapsed - ttft) * plan.rate) / 1000));
    if (due <= sent) continue;
    const text = plan.pieces.slice(sent, due).join("");
    run.text += text;
    emit(run, { type: "delta", text, tokens: due - sent, elapsed_ms: ttft + ((due - 1) * 1000) / plan.rate });
    sent = due;
    if (plan.drop && sent >= plan.drop) {
      plan.drop = 0;
      for (const socket of [...run.viewers]) socket.terminate();
    }
    if (plan.interrupt && sent >= plan.interrupt) break;
  }
  const total = ttft + ((sent - 1) * 1000) / plan.rate;
  run.usage = { prompt_tokens: plan.prefill, completion_tokens: sent };
  run.timings = { queue_ms: 3, ttft_ms: ttft, total_ms: total, decode_tokens_per_s: sent > 1 ? plan.rate : null };
  const reason = run.stop ? "cancelled" : plan.interrupt ? "interrupted" : "stop";
  run.state = run.stop ? "stopped" : plan.interrupt ? "interrupted" : "done";
  emit(run, { type: "done", finish_reason: reason, usage: run.usage, timings: run.timings });
}

function generate(socket, frame) {
  const prompt = frame.messages[frame.messages.length - 1].content;
  if (prompt.length > 100_000) {
    socket.send(JSON.stringify({ type: "error", generation_id: null, request_id: frame.request_id, code: "prompt_too_long", message: "This prompt has 52,100 tokens; SmolLM2 135M takes 2,048. Shorten it by 50,052." }));
    return;
  }
  let conversation = conversations.get(frame.conversation_id);
  if (!conversation) {
    conversation = { id: randomUUID(), title: prompt.slice(0, 60), updated_at: new Date().toISOString(), messages: [] };
    conversations.set(conversation.id, conversation);
  }
  const run = { id: randomUUID(), state: "queued", model: frame.params.model, params: frame.params, usage: null, timings: null, error: null, text: "", events: [], viewers: new Set([socket]) };
  runs.set(run.id, run);
  let user = conversation.messages.find((one) => one.id === frame.user_message_id);
  if (!user) {
    user = { id: randomUUID(), parent_id: frame.parent_id ?? null, role: "user", content: prompt, created_at: new Date().toISOString(), run: null };
    conversation.messages.push(user);
  }
  const answer = { id: randomUUID(), parent_id: user.id, role: "assistant", content: "", created_at: new Date().toISOString(), run };
  conversation.messages.push(answer);
  socket.send(JSON.stringify({ type: "accepted", generation_id: run.id, request_id: frame.request_id, conversation_id: conversation.id, user_message_id: user.id, assistant_message_id: answer.id }));
  void play(run, script(prompt));
}

const publicRun = ({ id, state, model, params, usage, timings, error, text, events }) => ({ id, state, model, params, usage, timings, error, text, last_event_id: events.findLast((one) => one.event_id)?.event_id ?? null, finish_reason: events.findLast((one) => one.type === "done")?.finish_reason ?? "", points: events.filter((one) => one.type === "delta").map((one) => [one.tokens, one.elapsed_ms, [...one.text].length]) });
const types = { ".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css", ".woff2": "font/woff2", ".wasm": "application/wasm", ".json": "application/json" };

function page(path) {
  const bundle = readFileSync(join(root, "templates/bundle/app.html"), "utf8").replace(/{% load static %}/g, "").replace(/{% static '([^']+)' %}/g, "/static/$1").replace(/ nonce="[^"]*"/g, "");
  const boot = { user: null, anonymous: true, models: [gpu, cpu], default_model: process.env.MODEL ?? gpu.name, limits: { message_bytes: 5e6, tokens_per_day: 20000 }, socket_path: "/ws/playground/", conversation_id: /^\/c\/(.+)/.exec(path)?.[1] ?? null };
  return `<!doctype html><html lang="en" data-theme="dark"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>Playground</title><script>document.documentElement.dataset.theme=localStorage.getItem("theme")||(matchMedia("(prefers-color-scheme: light)").matches?"light":"dark")</script>${bundle}</head><body><div id="app"></div><script type="application/json" id="boot">${JSON.stringify(boot)}</script></body></html>`;
}

const server = createServer((request, response) => {
  const url = new URL(request.url, "http://x");
  const json = (value, status = 200) => response.writeHead(status, { "Content-Type": "application/json" }).end(status === 204 ? "" : JSON.stringify(value));
  const id = /^\/api\/conversations\/([^/]+)/.exec(url.pathname)?.[1];
  if (url.pathname.startsWith("/static/")) {
    try {
      const body = readFileSync(join(root, normalize(url.pathname)));
      return response.writeHead(200, { "Content-Type": types[extname(url.pathname)] ?? "application/octet-stream" }).end(body);
    } catch {
      return response.writeHead(404).end();
    }
  }
  if (url.pathname === "/api/conversations") {
    const query = (url.searchParams.get("q") ?? "").toLowerCase();
    const items = [...conversations.values()].reverse().filter((one) => one.title.toLowerCase().includes(query));
    return json({ items: items.map(({ id, title, updated_at, messages }) => ({ id, title, updated_at, decode_tokens_per_s: messages.at(-1)?.run?.timings?.decode_tokens_per_s ?? null, state: messages.at(-1)?.run?.state ?? null })), next: null });
  }
  if (id) {
    const conversation = conversations.get(id);
    if (!conversation) return json({ code: "not_found", message: "There is no such chat." }, 404);
    if (request.method === "DELETE") return conversations.delete(id), json(null, 204);
    if (request.method === "PATCH") {
      let body = "";
      request.on("data", (part) => (body += part));
      return request.on("end", () => ((conversation.title = JSON.parse(body).title), json({ id, title: conversation.title })));
    }
    return json({ id, title: conversation.title, messages: conversation.messages.map(({ run, ...one }) => ({ ...one, generation: run ? publicRun(run) : null })) });
  }
  if (url.pathname.startsWith("/api/")) return json({ code: "not_found", message: "No such call." }, 404);
  response.writeHead(200, { "Content-Type": "text/html" }).end(page(url.pathname));
});

new WebSocketServer({ server, path: "/ws/playground/", maxPayload: 2e7 }).on("connection", (socket) => {
  socket.on("message", (data) => {
    const frame = JSON.parse(String(data));
    const run = runs.get(frame.generation_id);
    if (frame.type === "generate") generate(socket, frame);
    else if (frame.type === "stop" && run) run.stop = true;
    else if (frame.type === "resume" && run) {
      const from = run.events.findIndex((one) => one.event_id === frame.last_event_id);
      for (const event of run.events.slice(from + 1)) socket.send(JSON.stringify(event));
      run.viewers.add(socket);
    }
  });
  socket.on("close", () => runs.forEach((run) => run.viewers.delete(socket)));
});
server.listen(port, "127.0.0.1", () => console.log(`http://127.0.0.1:${port}/`));

import type { Params } from "../api/types";

export interface CodeRequest {
  /** With /v1 at its end. */
  baseUrl: string;
  messages: { role: string; content: string }[];
  params: Params;
}

export type CodeKind = "curl" | "python" | "javascript";

/** The body of POST /v1/chat/completions; what is switched off or left to chance is left out. */
export function bodyOf({ messages, params }: CodeRequest): Record<string, unknown> {
  const body: Record<string, unknown> = { model: params.model, messages, temperature: params.temperature };
  if (params.top_p < 1) body.top_p = params.top_p;
  if (params.top_k > 0) body.top_k = params.top_k;
  if (params.min_p > 0) body.min_p = params.min_p;
  if (params.max_tokens) body.max_tokens = params.max_tokens;
  if (params.seed !== null) body.seed = params.seed;
  if (params.stop.length > 0) body.stop = params.stop;
  return { ...body, stream: true };
}

/** For a POSIX shell. */
export function toCurl(request: CodeRequest): string {
  const json = JSON.stringify(bodyOf(request), null, 2).replaceAll("'", "'\\''");
  return [
    `curl -N ${request.baseUrl}/chat/completions \\`,
    '  -H "Authorization: Bearer $OPENAI_API_KEY" \\',
    '  -H "Content-Type: application/json" \\',
    `  -d '${json}'`,
    "",
  ].join("\n");
}

/** Fields that the `openai` package has no arguments for. */
const EXTRA = ["top_k", "min_p"];

export function toPython(request: CodeRequest): string {
  const { messages, ...rest } = bodyOf(request);
  const args = Object.entries(rest).filter(([name]) => !EXTRA.includes(name) && name !== "stream");
  const extra = Object.entries(rest).filter(([name]) => EXTRA.includes(name));
  const lines = (messages as CodeRequest["messages"]).map((one) => `        {"role": ${literal(one.role)}, "content": ${literal(one.content)}},`);
  return [
    "# pip install openai",
    "import os",
    "",
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${literal(request.baseUrl)}, api_key=os.environ["OPENAI_API_KEY"])`,
    "stream = client.chat.completions.create(",
    ...args.filter(([name]) => name === "model").map(([name, value]) => `    ${name}=${literal(value)},`),
    "    messages=[",
    ...lines,
    "    ],",
    ...args.filter(([name]) => name !== "model").map(([name, value]) => `    ${name}=${literal(value)},`),
    ...(extra.length ? [`    extra_body={${extra.map(([name, value]) => `"${name}": ${literal(value)}`).join(", ")}},`] : []),
    "    stream=True,",
    ")",
    "for chunk in stream:",
    '    print(chunk.choices[0].delta.content or "", end="", flush=True)',
    "print()",
    "",
  ].join("\n");
}

export function toJavaScript(request: CodeRequest): string {
  return [
    "// npm install openai; save as ask.mjs",
    'import OpenAI from "openai";',
    "",
    `const client = new OpenAI({ baseURL: ${literal(request.baseUrl)}, apiKey: process.env.OPENAI_API_KEY });`,
    `const stream = await client.chat.completions.create(${JSON.stringify(bodyOf(request), null, 2)});`,
    "for await (const chunk of stream) {",
    '  process.stdout.write(chunk.choices[0]?.delta?.content ?? "");',
    "}",
    "console.log();",
    "",
  ].join("\n");
}

export const writers: Record<CodeKind, (request: CodeRequest) => string> = { curl: toCurl, python: toPython, javascript: toJavaScript };

/** Strings, numbers and lists of strings are written alike in JSON, Python and JavaScript. */
function literal(value: unknown): string {
  return Array.isArray(value) ? `[${value.map(literal).join(", ")}]` : JSON.stringify(value);
}

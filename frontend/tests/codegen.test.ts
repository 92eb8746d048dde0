import { execFileSync } from "node:child_process";
import { describe, expect, it } from "vitest";
import { bodyOf, toCurl, toJavaScript, toPython, type CodeRequest } from "../src/codegen/request";

const NASTY = "It's \"quoted\"\n\\n $HOME `id` $(id) 🙂 \u2028 end";
const request: CodeRequest = {
  baseUrl: "http://127.0.0.1:8000/v1",
  messages: [
    { role: "system", content: "Be brief." },
    { role: "user", content: NASTY },
  ],
  params: { model: "smollm2-135m-instruct", temperature: 0.2, top_p: 0.95, top_k: 40, min_p: 0.05, max_tokens: 64, seed: 7, stop: ["\n\n", "'"] },
};

describe("use this from code", () => {
  it("leaves out what is switched off", () => {
    const plain = { ...request.params, top_p: 1, top_k: 0, min_p: 0, seed: null, stop: [] };
    expect(bodyOf({ ...request, params: plain })).toEqual({ model: "smollm2-135m-instruct", messages: request.messages, temperature: 0.2, max_tokens: 64, stream: true });
  });

  it("gives a shell exactly the body, whatever is in it", () => {
    const script = toCurl(request).replace("curl -N", "printf '%s\\0'");
    const args = execFileSync("bash", ["--norc", "-c", script], { env: { OPENAI_API_KEY: "mk-1" } }).toString().split("\0");
    expect(args[0]).toBe("http://127.0.0.1:8000/v1/chat/completions");
    expect(args[2]).toBe("Authorization: Bearer mk-1");
    expect(JSON.parse(args[6] ?? "")).toEqual(bodyOf(request));
  });

  it("gives Python exactly the arguments", () => {
    const fake = [
      "import json, os, sys, types",
      "class OpenAI:",
      "    def __init__(self, **options): self.chat = self.completions = self; print(json.dumps(options), file=sys.stderr)",
      "    def create(self, **body): print(json.dumps(body)); return []",
      "sys.modules['openai'] = types.SimpleNamespace(OpenAI=OpenAI)",
      "",
    ].join("\n");
    const out = execFileSync("python3", ["-c", fake + toPython(request)], { env: { ...process.env, OPENAI_API_KEY: "mk-1" }, stdio: ["ignore", "pipe", "ignore"] });
    const { extra_body, ...rest } = JSON.parse(out.toString().split("\n")[0] ?? "");
    expect({ ...rest, ...extra_body }).toEqual(bodyOf(request));
  });

  it("gives JavaScript exactly the options", () => {
    const code = toJavaScript(request);
    const literal = code.slice(code.indexOf("create(") + 7, code.indexOf(");\nfor await"));
    expect(new Function(`return ${literal}`)()).toEqual(bodyOf(request));
  });
});

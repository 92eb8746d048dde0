// The JavaScript `openai` package against a running server. How to run it: README.md beside it.
const OpenAI = require("openai");

const model = process.env.MODEL ?? "smollm2-135m-instruct";
const client = new OpenAI({ maxRetries: 0 }); // OPENAI_BASE_URL and OPENAI_API_KEY
const messages = [{ role: "user", content: "Name three colours." }];

async function check(name, run) {
  console.log(`ok  ${name}: ${JSON.stringify(await run())}`);
}

function assert(condition, words) {
  if (!condition) throw new Error(words);
}

async function main() {
  await check("models", async () => (await client.models.list()).data.map((one) => one.id));
  await check("chat", async () => {
    const answer = await client.chat.completions.create({ model, messages, max_tokens: 16, seed: 3, logprobs: true, top_logprobs: 1 });
    assert(answer.choices[0].logprobs.content.length > 0, "no logprobs");
    return answer.choices[0].message.content;
  });
  await check("chat stream with usage", async () => {
    let text = "";
    let usage = null;
    for await (const chunk of await client.chat.completions.create({ model, messages, max_tokens: 16, seed: 3, stream: true, stream_options: { include_usage: true } })) {
      text += chunk.choices[0]?.delta.content ?? "";
      usage = chunk.usage ?? usage;
    }
    assert(usage.total_tokens > 16, "no usage");
    return text;
  });
  await check("completion", async () => (await client.completions.create({ model, prompt: "1, 2, 3,", max_tokens: 6, temperature: 0, stop: [" 7"] })).choices[0].text);
  await check("abort", async () => {
    const stream = await client.chat.completions.create({ model, messages, max_tokens: 1000, stream: true });
    let pieces = 0;
    for await (const _chunk of stream) if (++pieces === 5) stream.controller.abort();
    return pieces;
  });
  await check("errors", async () => {
    const names = [];
    for (const [options, body] of [
      [{ apiKey: "mk-wrong" }, {}],
      [{}, { model: "gpt-9" }],
      [{}, { temperature: 9 }],
    ]) {
      try {
        await client.withOptions(options).chat.completions.create({ model, messages, max_tokens: 1, ...body });
      } catch (error) {
        names.push(error.constructor.name);
      }
    }
    assert(names.join() === "AuthenticationError,NotFoundError,BadRequestError", names.join());
    return names;
  });
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});

import { expect, it } from "vitest";
import type { ModelCard } from "../src/api/types";
import { benchCommand } from "../src/instrument/measured";

const card = { name: "random:tiny", context_tokens: 256, gpus: 0, precision: "float32" } as ModelCard;

it("names a command that the engine takes: lengths within the context, two tokens at least, the precision that was used", () => {
  expect(benchCommand(card, null, 0)).toBe("python -m engine bench random:tiny --dtype float32 --prompt-tokens 45 --output-tokens 211");
  expect(benchCommand(card, 200, 1)).toBe("python -m engine bench random:tiny --dtype float32 --prompt-tokens 200 --output-tokens 2");
  const large = { ...card, name: "laneformer-2b", context_tokens: 4096, gpus: 2, precision: "fp8" };
  expect(benchCommand(large, null, 0)).toBe("python -m engine bench laneformer-2b --gpus 2 --prompt-tokens 45 --output-tokens 256");
});

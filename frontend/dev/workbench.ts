/** The workbench alone: `window.bench`, and `window.play(name, language, text, tokensPerSecond)` to write a file into it. */
import "../src/styles/tokens.css";
import "../src/styles/base.css";
import { t } from "../src/i18n";
import { createWorkbench } from "../src/workbench";

const bench = createWorkbench(document.getElementById("code")!, document.getElementById("console")!, { t });
const asked: unknown[] = [];
const fixes: unknown[] = [];
bench.onAskWithCode((files) => asked.push(files));
bench.onFixIt((info) => fixes.push(info));
let messages = 0;

/** Four characters a token, a batch every 10 ms of the engine's clock, as the stream has them. */
function play(name: string, language: string, text: string, tokensPerSecond = 3000): Promise<void> {
  const file = bench.beginFile({ conversationId: "dev", messageId: `m${++messages}`, name, language });
  const start = performance.now();
  let sent = 0;
  return new Promise((resolve) => {
    const timer = setInterval(() => {
      const ms = performance.now() - start;
      const until = Math.min(text.length, Math.round((ms / 1000) * tokensPerSecond * 4));
      if (until > sent) file.append(text.slice(sent, until), ms);
      sent = until;
      if (sent < text.length) return;
      clearInterval(timer);
      file.finish(true);
      resolve();
    }, 10);
  });
}

Object.assign(window, { bench, play, asked, fixes });
const theme = new URLSearchParams(location.search).get("theme");
if (theme) document.documentElement.dataset.theme = theme;

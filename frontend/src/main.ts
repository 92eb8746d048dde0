import "./styles/site.css";
import "./styles/app.css";
import "./styles/instrument.css";
import type { Boot } from "./api/types";
import { Playground } from "./shell/app";
import { notice } from "./shell/layers";
import { followSystemTheme } from "./shell/theme";

const root = document.getElementById("app");
const boot = JSON.parse(document.getElementById("boot")?.textContent ?? "null") as Boot | null;

followSystemTheme();
if (root && boot) {
  if (location.pathname.startsWith("/race")) void import("./race/race").then(({ Race }) => new Race(boot, root));
  else new Playground(boot, root);
  for (const text of boot.notices) notice(text);
}

document.addEventListener("playground:share", (event) => {
  const { detail } = event as CustomEvent<{ conversationId: string; title: string }>;
  void import("./pages/links/share-dialog").then(({ openShareDialog }) => openShareDialog(detail));
});

import { defineConfig } from "vite";

/** `npx vite -c dev/vite.config.ts`, then /dev/workbench.html; the sandbox document comes from the Django server on port 8000. */
export default defineConfig({
  root: new URL("..", import.meta.url).pathname,
  server: { proxy: { "/sandbox/": process.env.DJANGO ?? "http://127.0.0.1:8000" } },
});

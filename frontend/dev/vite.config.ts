import { defineConfig } from "vite";

const root = new URL("..", import.meta.url).pathname;

/**
 * The workbench alone: `npx vite build -c dev/vite.config.ts && npx vite preview -c dev/vite.config.ts`, then /dev/workbench.html.
 * The sandbox document comes from the Django server on port 8000 (or `DJANGO=http://...`).
 */
export default defineConfig({
  root,
  publicDir: false,
  build: { outDir: process.env.OUT ?? `${root}/dev/dist`, emptyOutDir: true, target: "es2022", assetsInlineLimit: 0, rollupOptions: { input: `${root}/dev/workbench.html` } },
  server: { proxy: { "/sandbox/": process.env.DJANGO ?? "http://127.0.0.1:8000" } },
});

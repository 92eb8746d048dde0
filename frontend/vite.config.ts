import { mkdirSync, writeFileSync } from "node:fs";
import { resolve } from "node:path";
import { defineConfig, type Plugin } from "vite";

const root = import.meta.dirname;
const templates = resolve(root, "../templates/bundle");

/** One entry a page family. Each gets `templates/bundle/NAME.html`, which the page's template includes in its head. */
const entries: Record<string, string> = {
  app: resolve(root, "src/main.ts"),
  site: resolve(root, "src/site.ts"),
  share: resolve(root, "src/pages/share/main.ts"),
  signin: resolve(root, "src/pages/signin/main.ts"),
  links: resolve(root, "src/pages/links/main.ts"),
  keys: resolve(root, "src/pages/keys/main.ts"),
  stats: resolve(root, "src/pages/stats/main.ts"),
};

/** Writes the Django includes: file names carry a content hash, so they may be cached for ever and never mix two builds. */
function djangoIncludes(): Plugin {
  return {
    name: "django-includes",
    writeBundle(_options, bundle) {
      mkdirSync(templates, { recursive: true });
      for (const chunk of Object.values(bundle)) {
        if (chunk.type !== "chunk" || !chunk.isEntry || !(chunk.name in entries)) continue;
        const styles = new Set<string>();
        const scripts = new Set<string>();
        const visit = (name: string): void => {
          const part = bundle[name];
          if (part?.type !== "chunk" || scripts.has(name)) return;
          scripts.add(name);
          part.imports.forEach(visit); // what is imported comes first in the cascade
          for (const css of part.viteMetadata?.importedCss ?? []) styles.add(css);
        };
        visit(chunk.fileName);
        const fonts = Object.keys(bundle).filter((name) => /(plex-sans|barlow-figure).*\.woff2$/.test(name));
        const lines = ["{% load static %}"];
        for (const name of fonts.sort()) lines.push(`<link rel="preload" as="font" type="font/woff2" crossorigin href="{% static 'app/${name}' %}">`);
        for (const name of styles) lines.push(`<link rel="stylesheet" href="{% static 'app/${name}' %}">`);
        for (const name of [...scripts].sort()) {
          if (name !== chunk.fileName) lines.push(`<link rel="modulepreload" href="{% static 'app/${name}' %}">`);
        }
        lines.push(`<script type="module" src="{% static 'app/${chunk.fileName}' %}" nonce="{{ request.csp_nonce }}"></script>`);
        writeFileSync(resolve(templates, `${chunk.name}.html`), lines.join("\n") + "\n");
      }
    },
  };
}

export default defineConfig({
  root,
  base: "./",
  publicDir: false,
  plugins: [djangoIncludes()],
  build: {
    outDir: resolve(root, "../static/app"),
    emptyOutDir: true,
    target: "es2022",
    cssCodeSplit: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 700,
    rollupOptions: {
      input: entries,
      output: {
        entryFileNames: "[name]-[hash].js",
        chunkFileNames: "chunks/[name]-[hash].js",
        assetFileNames: "assets/[name]-[hash][extname]",
      },
    },
  },
  test: { environment: "happy-dom", include: ["tests/**/*.test.ts"] },
} as Parameters<typeof defineConfig>[0]);

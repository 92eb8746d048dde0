#!/bin/sh
# A Chromium for the browser tests: the one that is there, else Debian's when root, else a clear message.
for name in "$CHROMIUM" chromium chromium-browser google-chrome; do
  [ -n "$name" ] && command -v "$name" >/dev/null && exit 0
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "Installing Chromium ..."
  apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium && exit 0
fi
echo "error: The browser tests need Chromium. Install it (Debian: apt-get install chromium) or set CHROMIUM=/path/to/it." >&2
exit 1

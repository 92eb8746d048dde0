#!/usr/bin/env bash
# Shows when each piece of an answer reaches a raw client: seconds since the request, then the line. How to run it: README.md beside it.
set -euo pipefail
body='{"model": "'"${MODEL:-smollm2-135m-instruct}"'", "messages": [{"role": "user", "content": "Count to ten."}], "max_tokens": 24, "stream": true}'
started=$EPOCHREALTIME
curl -sN "$OPENAI_BASE_URL/chat/completions" -H "Authorization: Bearer $OPENAI_API_KEY" -H "Content-Type: application/json" -d "$body" |
  while IFS= read -r line; do
    [ -z "$line" ] || awk -v now="$EPOCHREALTIME" -v from="$started" -v line="$line" 'BEGIN {printf "%6.3f  %s\n", now - from, substr(line, 1, 400)}'
  done

"""``python -m playground.supervisor``: what `make run` starts."""

import sys

from pydantic import ValidationError

try:
    from playground.supervisor.supervisor import main
except ValidationError as invalid:  # a setting that is no number, ...
    for error in invalid.errors():
        print(f"error: {'.'.join(map(str, error['loc'])).upper()}: {error['msg']}; got {error['input']!r}.", file=sys.stderr)
    sys.exit(1)

sys.exit(main())

"""``python -m playground.supervisor``: what `make run` starts."""

import sys

from playground.supervisor.supervisor import main

sys.exit(main())

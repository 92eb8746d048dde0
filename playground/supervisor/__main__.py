import sys

from playground.supervisor.supervisor import main

sys.exit(main())

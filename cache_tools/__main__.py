"""``python -m cache_tools``: the same as ``cache-tools``."""

from cache_tools.entry import main

raise SystemExit(main())

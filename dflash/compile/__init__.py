"""The one place that owns torch.compile: its settings, its warm-up, its cache and the account of hits and misses."""

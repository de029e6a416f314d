"""cache_tools: the ``torch.compile`` cache as a fingerprinted, verified artefact."""

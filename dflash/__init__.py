"""dflash: trains DFlash drafters (block-diffusion draft models for speculative decoding, arXiv 2602.06036)."""

"""The dflash command line: one thin file per command group; torch is imported inside commands only."""

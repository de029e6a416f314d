"""What ran, how it ended, and the evidence it left."""

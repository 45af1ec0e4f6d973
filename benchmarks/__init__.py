"""What llmch costs, as ratios measured in one run: `make bench`. No bounds, since machines differ."""

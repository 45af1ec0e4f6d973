"""What planner and factory both stand on: the contract, the run, the doors to the outside."""

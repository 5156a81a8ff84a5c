"""What a run will take, before it begins: time, memory and disk of each phase, from sizes and this machine's speed."""

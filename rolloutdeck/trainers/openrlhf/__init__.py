"""OpenRLHF: `python -m rolloutdeck.trainers.openrlhf` starts its PPO training and records it live."""

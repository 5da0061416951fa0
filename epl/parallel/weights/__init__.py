"""Where and when the weights of a model are used: offload fetches them ahead."""

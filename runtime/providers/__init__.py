"""What ONNX Runtime runs models on: execution providers, which model runs where, sessions, and what works on this machine."""

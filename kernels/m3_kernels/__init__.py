"""The operations MiniMax M3 is made of: a torch reference for each and, where there is one, a kernel for CUDA."""

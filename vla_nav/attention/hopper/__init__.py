"""FlashAttention 4 on Hopper, with this project's mask and order of work in its kernels."""

"""The image side of M3: bytes of an image or video to frames, frames to the vectors that stand in a prompt for them."""

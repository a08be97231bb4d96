"""Screenshots for nano's eyes, drawn by this project: a picture, and the text that stands in it as the truth.

Drawn with Pillow alone. `draw.screen(number)` is the way in; fonts and layouts that only an evaluation shows are kept
apart in `fonts` and `layouts`.
"""

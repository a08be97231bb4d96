"""How m3-nano is made: sources by licence, tokenizer, injected bugs, conversations, then model, training and export.

The data side reads in the order in which it flows: `sources` finds Python text under an allowed licence, `units` cuts
it into functions and windows, `bugs` damages one place of a unit, `conversations` writes the damage and its repair as
the tool conversation that `m3 fix` has with the model, and packs token ids for training.
"""

"""Messages and tools to token ids and back: M3's template, its call syntax, grammars for it, and one turn of a chat."""

"""From text to tree and back: tokens, macros, the parser, the printer, and what can be read off a tree."""

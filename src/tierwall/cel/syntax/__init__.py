"""From text to tree and back: tokens, macros, the parser, the printer, and the demands that a tree makes."""

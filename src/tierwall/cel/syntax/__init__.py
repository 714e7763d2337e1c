"""The syntax of CEL: tokens, macros, the tree, its parser and printer, and the demands that a tree makes."""

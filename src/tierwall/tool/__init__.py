"""The tool plane: may this caller use this tool through this Gateway, and which AccessPolicy says so?

`question.ask` answers a question. `model.model` is every AccessPolicy of a snapshot in one form (`rules`), as a stack
of two tiers for each way; `decide.decide` lets a request fall through it, in the order of the proposal "Allow
AccessPolicy to target Gateway objects". `grants.grants` is what a caller may use; `sentence` finds the words.
"""

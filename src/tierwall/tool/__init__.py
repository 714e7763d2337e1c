"""The tool plane: may this caller use this tool through this Gateway, and which AccessPolicy says so?

`question.ask` answers a question. `model.model` reads every AccessPolicy of a snapshot into one form (`rules`), with a
stack of two tiers for each way. `decide.decide` lets a request fall through it, in the order of the proposal "Allow
AccessPolicy to target Gateway objects". `grants.grants` lists what a caller may use; `sentence` writes the words.
"""

"""The tool plane: may this caller use this tool through this Gateway, and which AccessPolicy says so?

`question.ask` answers a question with a decision document. `model.model` is every AccessPolicy of a snapshot in one
form (`rules`), by target; `decide.decide` is the order of the proposal "Allow AccessPolicy to target Gateway objects".
"""

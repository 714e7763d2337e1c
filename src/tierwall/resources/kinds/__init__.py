"""The kinds that Tierwall validates or reads: their definitions, and the metadata of every object."""

"""The model of the gateway plane: the fields of policies, conditional lists, and places with their levels."""

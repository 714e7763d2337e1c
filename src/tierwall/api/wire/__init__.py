"""The wire shapes of conditional authorization, each a codec around the same decision algebra."""

"""Policy tests: questions with expected answers, kept beside the policies as unit tests are kept beside code."""

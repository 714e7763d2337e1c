"""Tests of comparing and converting."""

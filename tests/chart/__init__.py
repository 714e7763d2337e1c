"""Tests of the chart in deploy/helm/tierwall."""
